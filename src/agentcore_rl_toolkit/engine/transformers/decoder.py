"""The thread that samples: it prefills waiting sequences, steps the batch, and hands tokens over.

A sequence waits, is prefilled up to its last id, joins the batch and is decoded with the others, one token a step. Its
last id goes through the batch too, so that all sampling happens in one place. Finished and abandoned sequences leave
before the next step. When the batch outgrows its space, the newest sequence returns to the queue and is prefilled again
later, sampled tokens included. Between two steps a trainer may hold the thread and change the weights.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from typing import Any

import torch

from ...errors import EngineError
from ..base import Sampled, StepGate
from .decode_batch import Counters, DecodeBatch, DecoderLimits
from .kv_cache import ID_BYTES, PrefixCache
from .model_runner import ModelRunner, out_of_memory
from .prefill import PrefillQueue
from .sampler import Draw
from .sequence import Sequence, TokenStream

logger = logging.getLogger(__name__)


class Decoder:
    """Decodes submitted sequences on its own thread."""

    def __init__(
        self, runner: ModelRunner, limits: DecoderLimits, gate: StepGate, *, version: str, tokenizer: Any = None
    ) -> None:
        self.runner, self.limits, self.version = runner, limits, version
        self.counters = Counters()
        self.epoch = 0
        """Counts updates of the weights: keys and values from before one don't mix with those from after."""
        self.batch = DecodeBatch(runner, at_temperature=limits.at_temperature)
        self.prefixes = PrefixCache(limits.prefix_bytes)
        self.queue = PrefillQueue(runner, self.batch, self.prefixes, limits, self.counters)
        self._tokenizer = tokenizer
        self._inbox: deque[Sequence] = deque()
        self._gate = gate
        self._closing = False
        self._outbox: list[tuple[TokenStream, Sampled | EngineError]] = []
        self._delivered_at = 0.0
        self._thread = threading.Thread(target=self._work, name="transformers-engine", daemon=True)
        self._thread.start()

    # --- from other threads ------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Sequences without a place in the batch."""
        return len(self.queue) + len(self._inbox)

    def submit(self, sequence: Sequence) -> None:
        with self._gate.changed:
            if self._closing:
                raise EngineError("the engine was closed", status=503)
            self._inbox.append(sequence)
            self._gate.changed.notify_all()

    def abandon(self, sequence: Sequence) -> None:
        """The caller stopped reading."""
        if not sequence.finished:
            with self._gate.changed:
                sequence.abandoned = True
                self._gate.changed.notify_all()

    def change_weights(self, version: str | None) -> None:
        """The weights have changed; call it only while held. Sequences that have sampled nothing yet start again."""
        self.version = self.version if version is None else version
        self.epoch += 1
        self.prefixes.clear()
        for sequence in self.queue:
            sequence.drop_kv()
        for sequence in [s for s in self.batch.sequences if not s.sampled]:
            self._preempt(sequence)

    def close(self) -> None:
        with self._gate.changed:
            self._closing = True
            self._gate.changed.notify_all()
        self._thread.join()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        with self.runner.stream():
            self._run()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                try:
                    self._round()
                except Exception as error:  # a defect of ours: better to fail every sequence than to lose the thread
                    self._handle_failure([*self.batch.sequences, *self.queue], error)
                if not self.batch.sequences and not self.queue:
                    self.runner.restore_training()  # before the last caller learns that its sequence is done
                self._deliver()
        except Exception:
            logger.exception("the engine's thread has ended, and so has the engine")
            raise
        finally:
            with self._gate.changed:
                self._closing, self._gate.stepping = True, False
                self._gate.changed.notify_all()
                left = [*self.batch.sequences, *self.queue, *self._inbox]
            self._fail(left, "the engine was closed", status=503)
            self._deliver()
            self.runner.restore_training()
            self.prefixes.clear()

    def _wait_for_work(self) -> bool:
        """Wait for a sequence, and while held; False when the engine closes."""
        with self._gate.changed:
            if self._gate.holds or not self._busy():
                self._deliver(everything=True)
                self.runner.restore_training()
                self._gate.stepping = False
                self._gate.changed.notify_all()
                self._gate.changed.wait_for(lambda: self._closing or (not self._gate.holds and self._busy()))
            if self._closing:
                return False
            self._gate.stepping = True
            self.queue.extend(self._inbox)
            self._inbox.clear()
            return True

    def _busy(self) -> bool:
        return bool(self._inbox or self.queue or self.batch.sequences)

    def _round(self) -> None:
        for sequence in [s for s in (*self.batch.sequences, *self.queue) if s.abandoned]:
            self.counters.aborted += 1
            self._remove(sequence)
        self._prefill()
        if self.batch.sequences:
            try:
                draw = self._step()
            except Exception as error:
                self._handle_failure(list(self.batch.sequences), error)
            else:
                self._append(draw)

    # --- prefill -----------------------------------------------------------------------------------------------------

    def _prefill(self) -> None:
        """Bring some of the waiting sequences closer to the batch, or into it."""
        group = self.queue.next_group(self.epoch)
        try:
            self.queue.prefill(group)
            for sequence in [s for s in group if s.prefilled]:
                self.batch.join(sequence)
                self.queue.remove(sequence)
        except Exception as error:
            self._handle_prefill_failure([s for s in group if s not in self.batch], error)

    def _handle_prefill_failure(self, group: list[Sequence], error: Exception) -> None:
        for sequence in group:
            sequence.drop_kv()
        if not out_of_memory(error):
            self._handle_failure(group, error)
        elif self.queue.shrink():
            self._free_memory()
        elif not self.batch:
            self._fail(group, "out of memory while reading the prompt", hint="lower prefix_bytes or max_batch")

    # --- a step ------------------------------------------------------------------------------------------------------

    def _step(self) -> Draw:
        while len(self.batch) > 1 and len(self.batch) * (self.batch.width + 1) > self.limits.max_batch_tokens:
            self._preempt(self.batch.sequences[-1])
        draw = self.batch.step()
        self.counters.steps += 1
        return draw

    def _append(self, draw: Draw) -> None:
        batch = list(self.batch.sequences)
        for sequence, token, logprob, top in zip(batch, draw.tokens, draw.logprobs, draw.top, strict=True):
            if not math.isfinite(logprob):
                where = f"after {len(sequence.ids)} tokens"
                self._fail([sequence], f"the model's logits are not finite {where}", poisoned=True)
                continue
            sequence.append(token, logprob, self.version, top)
            self.counters.sampled += 1
            finish = self._finish_reason(sequence, token)
            if finish is not None:
                sequence.finish(finish)
                self._remove(sequence)

    def _finish_reason(self, sequence: Sequence, token: int) -> str | None:
        s = sequence.sampling
        complete = sequence.grammar is not None and sequence.grammar.accept(token)
        if complete or (token in sequence.stop_ids and sequence.sampled >= (s.min_tokens or 0)):
            return "stop"
        if s.stop and self._tokenizer is not None:
            tail = max(map(len, s.stop)) * ID_BYTES + 8  # a character is at most four tokens
            start = max(sequence.prompt_length, len(sequence.ids) - tail)
            text = self._tokenizer.decode(sequence.ids[start:].tolist())
            if any(stop and stop in text for stop in s.stop):
                return "stop"
        return "length" if len(sequence.ids) >= sequence.limit else None

    # --- leaving -----------------------------------------------------------------------------------------------------

    def _remove(self, sequence: Sequence, *, keep: bool = True, poisoned: bool = False) -> None:
        """End a sequence; its keys and values are kept for the session's next turn."""
        sequence.finished = True
        if sequence in self.batch:
            if keep and sequence.keep and sequence.epoch == self.epoch:
                key = self.batch.cached_ids(sequence)
                self.prefixes.put(key, self.batch.read_kv(sequence, len(key) // ID_BYTES))
            self.batch.leave(sequence, poisoned=poisoned)
        elif sequence in self.queue:
            self.queue.remove(sequence)
        sequence.kv = None
        self._post(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """Return it to the head of the queue, to be prefilled again with its sampled tokens."""
        self.batch.leave(sequence)
        sequence.drop_kv()
        if sequence.streamed:
            self._post(sequence)  # its next tokens may come from other weights
        self.queue.appendleft(sequence)
        self.counters.preempted += 1

    def _handle_failure(self, sequences: list[Sequence], error: Exception) -> None:
        if not out_of_memory(error):
            logger.error("the model failed", exc_info=error)
            self._fail(sequences, f"the model failed: {type(error).__name__}: {error}", poisoned=True)
        elif len(self.batch.sequences) > 1:
            self._preempt(self.batch.sequences[-1])
        elif not self.prefixes.entries:
            self._fail(sequences, "out of memory", hint="lower max_batch_tokens, max_batch or max_tokens")
        self._free_memory()

    def _free_memory(self) -> None:
        self.prefixes.clear()
        if self.runner.device.type == "cuda":
            torch.cuda.empty_cache()

    def _fail(
        self,
        sequences: list[Sequence],
        message: str,
        *,
        status: int = 502,
        hint: str | None = None,
        poisoned: bool = False,
    ) -> None:
        for sequence in sequences:
            self._remove(sequence, keep=False, poisoned=poisoned)
            text = message if hint is None else f"{message}\nhint: {hint}"
            error = EngineError(text, status=status, sampled_any=sequence.sampled > 0)
            self._outbox.append((sequence.stream, error))

    # --- handing over ------------------------------------------------------------------------------------------------

    def _deliver(self, everything: bool = False) -> None:
        """Hand chunks over, with one call per event loop: at once if a sequence has just finished or begun."""
        now = time.monotonic()
        due = everything or now - self._delivered_at >= self.limits.interval
        new = any(not s.delivered and s.sampled for s in self.batch.sequences)
        if not (due or new or self._outbox):
            return
        for sequence in self.batch.sequences:
            if sequence.streamed and (due or not sequence.delivered):
                self._post(sequence)
            sequence.delivered = sequence.sampled > 0
        items: dict[asyncio.AbstractEventLoop, list[tuple[TokenStream, Sampled | EngineError]]] = {}
        for stream, item in self._outbox:
            items.setdefault(stream.loop, []).append((stream, item))
        self._outbox, self._delivered_at = [], now if due else self._delivered_at
        for loop, some in items.items():
            try:
                loop.call_soon_threadsafe(_put, some)
            except RuntimeError:  # the loop is closed
                gone = {id(stream) for stream, _ in some}
                for sequence in self.batch.sequences:
                    sequence.abandoned |= id(sequence.stream) in gone

    def _post(self, sequence: Sequence) -> None:
        if sequence.chunk is not None:
            self._outbox.append((sequence.stream, sequence.chunk))
            sequence.chunk = None


def _put(items: list[tuple[TokenStream, Sampled | EngineError]]) -> None:
    for stream, item in items:
        stream.put(item)
