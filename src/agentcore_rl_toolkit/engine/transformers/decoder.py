"""The thread that samples: who is in the batch, what is prefilled next, and what happens between two steps.

A sequence waits, is prefilled up to its last id, joins the batch and is decoded with the others, one token a step. Its
last id goes through the batch too, so that all sampling happens in one place. Who finished or was abandoned leaves
before the next step. A sequence without room goes back to wait and is prefilled again later, sampled tokens included.

Between two steps a trainer may hold the thread and change the weights.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...errors import EngineError
from ..base import Sampled
from .decode_batch import Batch
from .kv_cache import ID_BYTES, Prefixes
from .layout import choose
from .limits import Counters, Limits
from .model_runner import Runner, out_of_memory
from .prefill_queue import Queue
from .sampler import Draw
from .sequence import Sequence, Stream

logger = logging.getLogger(__name__)


class Decoder:
    """Decodes what is submitted, on its own thread."""

    def __init__(
        self, runner: Runner, limits: Limits, *, version: str, tokenizer: Any = None, graphs: bool | None = None
    ) -> None:
        self.runner, self.limits, self.version = runner, limits, version
        self.layout = choose(runner, limits.max_batch, graphs)
        self.counters = Counters()
        self.epoch = 0
        """Counts updates of the weights: keys and values of different ones don't go together."""
        self.batch = Batch(runner, self.layout, at_temperature=limits.at_temperature)
        self.prefixes = Prefixes(limits.prefix_bytes)
        self.queue = Queue(runner, self.layout, self.batch, self.prefixes, limits, self.counters)
        self._tokenizer = tokenizer
        self._inbox: deque[Sequence] = deque()
        self._gate = threading.Condition()
        self._holds = 0
        self._stepping = False
        self._closing = False
        self._outbox: list[tuple[Stream, Sampled | EngineError]] = []
        self._delivered_at = 0.0
        self._thread = threading.Thread(target=self._run, name="transformers-engine", daemon=True)
        self._thread.start()

    # --- from other threads ------------------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        """Sequences waiting for a place."""
        return len(self.queue) + len(self._inbox)

    def submit(self, sequence: Sequence) -> None:
        with self._gate:
            if self._closing:
                raise EngineError("the engine was closed", status=503)
            self._inbox.append(sequence)
            self._gate.notify_all()

    def abandon(self, sequence: Sequence) -> None:
        """Nobody waits for it any more."""
        if not sequence.finished:
            with self._gate:
                sequence.abandoned = True
                self._gate.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Between two steps, for as long as this lasts."""
        self.hold()
        try:
            self.wait_for_rest()
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """Let no further step begin; `wait_for_rest` waits for the one under way."""
        with self._gate:
            self._holds += 1
            self._gate.notify_all()

    def wait_for_rest(self) -> None:
        with self._gate:
            self._gate.wait_for(lambda: not self._stepping)

    def release(self) -> None:
        with self._gate:
            self._holds -= 1
            self._gate.notify_all()

    def renew(self, version: str | None, *, recompute: bool) -> None:
        """The weights have changed; only while held. Who has sampled nothing yet starts again in any case."""
        self.version = self.version if version is None else version
        self.epoch += 1
        self.prefixes.clear()
        for sequence in self.queue:
            sequence.forget()
        for sequence in [s for s in self.batch.sequences if recompute or not s.sampled]:
            self._preempt(sequence)

    def close(self) -> None:
        with self._gate:
            self._closing = True
            self._gate.notify_all()
        self._thread.join()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._next():
                try:
                    self._round()
                except Exception as error:  # a defect of ours; better an error for everybody than a thread that is gone
                    self._failed([*self.batch.sequences, *self.queue], error)
                if not self.batch.sequences and not self.queue:
                    self.runner.rest()  # before anybody learns that the last one is done
                self._deliver()
        except Exception:
            logger.exception("the engine's thread has ended, and so has the engine")
            raise
        finally:
            with self._gate:
                self._closing, self._stepping = True, False
                self._gate.notify_all()
                left = [*self.batch.sequences, *self.queue, *self._inbox]
            self._fail(left, "the engine was closed", status=503)
            self._deliver()
            self.runner.close()
            self.prefixes.clear()

    def _next(self) -> bool:
        """Wait for something to do, unless held; False at the end."""
        with self._gate:
            if self._holds or not self._busy():
                self._deliver(everything=True)
                self.runner.rest()
                self._stepping = False
                self._gate.notify_all()
                self._gate.wait_for(lambda: self._closing or (not self._holds and self._busy()))
                self.layout.wake()
            if self._closing:
                return False
            self._stepping = True
            self.queue.extend(self._inbox)
            self._inbox.clear()
            return True

    def _busy(self) -> bool:
        return bool(self._inbox or self.queue or self.batch.sequences)

    def _round(self) -> None:
        for sequence in [s for s in (*self.batch.sequences, *self.queue) if s.abandoned]:
            self.counters.aborted += 1
            self._end(sequence)
        self._prefill()
        if self.batch.sequences:
            try:
                draw = self._step()
            except Exception as error:
                self._failed(list(self.batch.sequences), error)
            else:
                self._take(draw)

    # --- prefill -----------------------------------------------------------------------------------------------------

    def _prefill(self) -> None:
        """Bring some of those who wait closer to the batch, or into it."""
        group = self.queue.group(self.epoch)
        try:
            self.queue.prefill(group)
            for sequence in [s for s in group if s.prefilled]:
                self.batch.join(sequence)
                self.queue.remove(sequence)
        except Exception as error:
            self._prefill_failed([s for s in group if s not in self.batch], error)

    def _prefill_failed(self, group: list[Sequence], error: Exception) -> None:
        for sequence in group:
            sequence.forget()
        if not out_of_memory(error):
            self._failed(group, error)
        elif self.queue.shrink():
            self._free()
        elif not self.batch:
            self._fail(group, "out of memory while reading the prompt", hint="lower prefix_bytes or max_batch")

    # --- a step ------------------------------------------------------------------------------------------------------

    def _step(self) -> Draw:
        """One token for each of the batch."""
        while len(self.batch) > 1 and len(self.batch) * (self.batch.width + 1) > self.limits.max_batch_tokens:
            self._preempt(self.batch.sequences[-1])
        draw = self.batch.step()
        self.counters.steps += 1
        return draw

    def _take(self, draw: Draw) -> None:
        batch = list(self.batch.sequences)
        for sequence, token, logprob, top in zip(batch, draw.tokens, draw.logprobs, draw.top, strict=True):
            if not math.isfinite(logprob):
                where = f"after {len(sequence.ids)} tokens"
                self._fail([sequence], f"the model's logits are not finite {where}", poisoned=True)
                continue
            sequence.append(token, logprob, self.version, top)
            self.counters.sampled += 1
            finish = self._finish(sequence, token)
            if finish is not None:
                sequence.finish(finish)
                self._end(sequence)

    def _finish(self, sequence: Sequence, token: int) -> str | None:
        s = sequence.sampling
        whole = sequence.grammar is not None and sequence.grammar.accept(token)
        if whole or (token in sequence.stop_ids and sequence.sampled >= (s.min_tokens or 0)):
            return "stop"
        if s.stop and self._tokenizer is not None:
            tail = max(map(len, s.stop)) * ID_BYTES + 8  # a character is at most four tokens
            text = self._tokenizer.decode(
                sequence.ids[max(sequence.prompt_length, len(sequence.ids) - tail) :].tolist()
            )
            if any(stop and stop in text for stop in s.stop):
                return "stop"
        return "length" if len(sequence.ids) >= sequence.limit else None

    # --- leaving -----------------------------------------------------------------------------------------------------

    def _end(self, sequence: Sequence, *, keep: bool = True, poisoned: bool = False) -> None:
        """Out of the batch or the queue; what it computed is kept for the next turn."""
        sequence.finished = True
        if sequence in self.batch:
            if keep and sequence.keep and sequence.epoch == self.epoch:
                key = self.batch.known(sequence)
                kv = self.batch.read(sequence, len(key) // ID_BYTES)
                self.prefixes.put(key, kv, bytes(sequence.routes))
            self.batch.leave(sequence, poisoned=poisoned)
        elif sequence in self.queue:
            self.queue.remove(sequence)
        sequence.kv = None
        self._post(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of the queue, to be prefilled again with what it has sampled."""
        self.batch.leave(sequence)
        sequence.forget()
        if sequence.streamed:
            self._post(sequence)  # what follows may be of other weights
        self.queue.appendleft(sequence)
        self.counters.preempted += 1

    def _failed(self, sequences: list[Sequence], error: Exception) -> None:
        if not out_of_memory(error):
            logger.error("the model failed", exc_info=error)
            self._fail(sequences, f"the model failed: {type(error).__name__}: {error}", poisoned=True)
        elif len(self.batch.sequences) > 1:
            self._preempt(self.batch.sequences[-1])
        elif not self.prefixes.entries:
            self._fail(sequences, "out of memory", hint="lower max_batch_tokens, max_batch or max_tokens")
        self._free()

    def _free(self) -> None:
        """Memory that somebody needs more than the next turn does."""
        self.prefixes.clear()
        self.layout.free()
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
            self._end(sequence, keep=False, poisoned=poisoned)
            text = message if hint is None else f"{message}\nhint: {hint}"
            error = EngineError(text, status=status, sampled_any=sequence.sampled > 0)
            self._outbox.append((sequence.stream, error))

    # --- handing over ------------------------------------------------------------------------------------------------

    def _deliver(self, everything: bool = False) -> None:
        """Hand chunks over, with one call for each event loop: at once if somebody finished or has just begun."""
        now = time.monotonic()
        due = everything or now - self._delivered_at >= self.limits.interval
        new = any(not s.delivered and s.sampled for s in self.batch.sequences)
        if not (due or new or self._outbox):
            return
        for sequence in self.batch.sequences:
            if sequence.streamed and (due or not sequence.delivered):
                self._post(sequence)
            sequence.delivered = sequence.sampled > 0
        items: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Sampled | EngineError]]] = {}
        for stream, item in self._outbox:
            items.setdefault(stream.loop, []).append((stream, item))
        self._outbox, self._delivered_at = [], now if due else self._delivered_at
        for loop, some in items.items():
            try:
                loop.call_soon_threadsafe(_put, some)
            except RuntimeError:  # the loop is closed, so nobody reads
                gone = {id(stream) for stream, _ in some}
                for sequence in self.batch.sequences:
                    sequence.abandoned |= id(sequence.stream) in gone

    def _post(self, sequence: Sequence) -> None:
        chunk = sequence.take(self.runner.route_shape)
        if chunk is not None:
            self._outbox.append((sequence.stream, chunk))


def _put(items: list[tuple[Stream, Sampled | EngineError]]) -> None:
    for stream, item in items:
        stream.put(item)
