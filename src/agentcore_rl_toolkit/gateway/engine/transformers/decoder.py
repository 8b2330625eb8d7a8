"""The thread that samples: who is in the batch, what is prefilled next, and what happens between two steps.

A sequence waits, is prefilled up to its last id, joins the batch and is decoded with the others, one token a step. Its
last id goes through the batch too, so that all sampling happens in one place. Who finished or was abandoned leaves
before the next step. A sequence without room goes back to wait and is prefilled again later, sampled tokens included.

Prefills are shared: a sequence starts from the longest prefix that a kept, running or just prefilled one has in common
with it. Between two steps a trainer may hold the thread and change the weights.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base import EngineError, Sampled
from .kv import ID_BYTES, Kept, Prefill, Prefixes, Rows, common
from .runner import Runner, out_of_memory
from .sampler import Draw, Sampler
from .sequence import Sequence, Stream

logger = logging.getLogger(__name__)

WORTH = 32
"""How many ids another one must be about to prefill for us before we wait for it."""
SMALLEST = 64
"""Ids to prefill in one pass, when memory is short."""
AHEAD = 256
"""How many tokens a sequence should be able to sample before there is no room again."""


@dataclass
class Counters:
    """What the decoder has done so far, in tokens unless said otherwise."""

    steps: int = 0
    """Forward passes of the batch."""
    prefilled: int = 0
    reused: int = 0
    """Not prefilled, since their keys and values were known."""
    sampled: int = 0
    preempted: int = 0
    """Sequences sent back to wait."""


@dataclass(frozen=True)
class Limits:
    """How much the decoder takes on."""

    max_batch: int
    max_batch_tokens: int
    """Rows × the longest row: what the batch's keys and values may take."""
    prefill_tokens: int
    """In one pass; longer prompts take several, with steps of the batch in between."""
    prefix_bytes: int
    interval: float
    """Seconds between two deliveries of a sequence that goes on."""


class Decoder:
    """Decodes what is submitted, on its own thread."""

    def __init__(self, runner: Runner, limits: Limits, *, version: str, tokenizer: Any = None) -> None:
        self.runner, self.limits, self.version = runner, limits, version
        self.counters = Counters()
        self.epoch = 0
        self._budget = limits.prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.rows = Rows(runner.layers)
        self.prefixes = Prefixes(limits.prefix_bytes)
        self._tokenizer = tokenizer
        self._inbox: deque[Sequence] = deque()
        self._gate = threading.Condition()
        self._holds = 0
        self._stepping = False
        self._closing = False
        self._sampler: Sampler | None = None
        self._inputs = self._positions = torch.empty(0)
        self._outbox: list[tuple[Stream, Sampled | EngineError]] = []
        self._delivered_at = 0.0
        self._thread = threading.Thread(target=self._run, name="transformers-engine", daemon=True)
        self._thread.start()

    # --- from other threads ------------------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        """Sequences waiting for a place."""
        return len(self.waiting) + len(self._inbox)

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
            yield
        finally:
            self.release()

    def hold(self) -> None:
        with self._gate:
            self._holds += 1
            self._gate.notify_all()
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
        for sequence in self.waiting:
            sequence.forget()
        for sequence in [s for s in self.running if recompute or not s.sampled]:
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
                    self._failed([*self.running, *self.waiting], error)
                if not self.running and not self.waiting:
                    self.runner.rest()  # before anybody learns that the last one is done
                self._deliver()
        finally:
            with self._gate:
                self._closing, self._stepping = True, False
                self._gate.notify_all()
                left = [*self.running, *self.waiting, *self._inbox]
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
            if self._closing:
                return False
            self._stepping = True
            self.waiting.extend(self._inbox)
            self._inbox.clear()
            return True

    def _busy(self) -> bool:
        return bool(self._inbox or self.waiting or self.running)

    def _round(self) -> None:
        for sequence in [s for s in (*self.running, *self.waiting) if s.abandoned]:
            self._end(sequence)
        self._prefill()
        if self.running:
            try:
                draw = self._step()
            except Exception as error:
                self._failed(list(self.running), error)
            else:
                self._take(draw)

    # --- prefill -----------------------------------------------------------------------------------------------------

    def _prefill(self) -> None:
        """Bring some of those who wait closer to the batch, in one pass."""
        group = self._group()
        pending = [s for s in group if s.filled < len(s.ids) - 1]
        if pending:
            try:
                self._forward(pending)
            except Exception as error:
                return self._prefill_failed(group, error)
        for sequence in [s for s in group if s.filled == len(s.ids) - 1]:
            self.waiting.remove(sequence)
            self.rows.join(sequence.kv, sequence.filled)
            sequence.kv = None
            self.running.append(sequence)
            self._sampler = None
        return None

    def _group(self) -> list[Sequence]:
        """Who is prefilled next: in order, alike in length, and nobody who had better wait for another's prefix."""
        group: list[Sequence] = []
        sources = self._sources() if self.waiting else []
        keys: list[bytes] = []
        longest = 0
        for sequence in list(self.waiting)[: 2 * self.limits.max_batch]:
            if not self._fits(len(group), sequence):
                break
            key = sequence.ids.tobytes()
            if sequence.filled == 0:
                length, source = _longest(key, sources)
            else:
                length, source = sequence.filled, None
            if max((common(key, other) for other in keys), default=0) >= length + WORTH:
                continue
            count = min(len(sequence.ids) - 1 - length, self._budget)
            if keys and not self._alike(count, longest, len(group)):
                continue
            self._adopt(sequence, length, source)
            group.append(sequence)
            keys.append(key)
            longest = max(longest, count)
        return group

    def _alike(self, count: int, longest: int, rows: int) -> bool:
        """Whether prefilling it with the others is not mostly padding, and not too much."""
        if count == 0 or longest == 0:
            return True
        if self.runner.slides:  # the gap between a prefix and what follows would count as distance
            return False
        close = min(count, longest) * 2 >= max(count, longest) or max(count, longest) <= 16
        return close and (rows + 1) * max(count, longest) <= self._budget

    def _fits(self, joining: int, sequence: Sequence) -> bool:
        rows = len(self.running) + joining + 1
        if rows > self.limits.max_batch:
            return False
        ahead = len(sequence.ids) + min(AHEAD, sequence.limit - len(sequence.ids))
        return rows == 1 or rows * max(self.rows.width, ahead) <= self.limits.max_batch_tokens

    def _sources(self) -> list[tuple[bytes, Kept | int]]:
        """What a prefix can be taken from: what is kept, and the rows of the batch."""
        sources: list[tuple[bytes, Kept | int]] = [(kept.key, kept) for kept in self.prefixes.entries.values()]
        for row, sequence in enumerate(self.running):
            if sequence.epoch == self.epoch:
                sources.append((sequence.ids.tobytes()[: self.rows.lengths[row] * ID_BYTES], row))
        return sources

    def _adopt(self, sequence: Sequence, length: int, source: Kept | int | None) -> None:
        if sequence.filled == 0:
            sequence.epoch = self.epoch
        if source is None:
            return
        routes: bytes | bytearray
        if isinstance(source, int):
            sequence.kv, routes = self.rows.read(source, length), self.running[source].routes
        else:
            sequence.kv, routes = source.kv, source.routes
            self.prefixes.used(source)
        sequence.filled = length
        self.counters.reused += length
        width, itemsize = self._route_shape
        sequence.routes[:] = routes[: length * width * itemsize]

    def _forward(self, group: list[Sequence]) -> None:
        """One pass over the next ids of each, padded on the left."""
        counts = [min(len(s.ids) - 1 - s.filled, self._budget) for s in group]
        width, device = max(counts), self.runner.device
        prefill = Prefill([s.kv for s in group], [s.filled for s in group], self.runner.layers)
        rows = zip(group, counts, strict=True)
        ids = [[0] * (width - n) + s.ids[s.filled : s.filled + n].tolist() for s, n in rows]
        first = torch.tensor([s.filled - (width - n) for s, n in zip(group, counts, strict=True)], device=device)
        positions = (first[:, None] + torch.arange(width, device=device)).clamp(min=0)
        mask = None
        if len(group) > 1:
            known = _right_aligned([s.filled for s in group], prefill.width, device)
            mask = torch.cat([known, _right_aligned(counts, width, device)], dim=1)
        routes = self._pass(torch.tensor(ids, device=device), positions, mask, prefill.cache)[1]
        for row, (sequence, count) in enumerate(zip(group, counts, strict=True)):
            sequence.kv = prefill.result(row, count)
            sequence.filled += count
            self.counters.prefilled += count
            if routes is not None:
                sequence.routes += _bytes(routes[row, width - count :])

    def _prefill_failed(self, group: list[Sequence], error: Exception) -> None:
        for sequence in group:
            sequence.forget()
        if not out_of_memory(error):
            self._failed(group, error)
        elif self._budget > SMALLEST:  # less at a time
            self._budget //= 2
            self._free()
        elif not self.running:
            self._fail(group, "out of memory while reading the prompt", hint="lower prefix_bytes or max_batch")

    # --- a step ------------------------------------------------------------------------------------------------------

    def _step(self) -> Draw:
        """One token for each of the batch."""
        while len(self.running) > 1 and len(self.running) * (self.rows.width + 1) > self.limits.max_batch_tokens:
            self._preempt(self.running[-1])
        sampler = self._sampler or self._compose()
        mask = self._mask(self.rows.prepare())
        logits, routes = self._pass(self._inputs, self._positions, mask, self.rows.cache)
        draw = sampler(logits)
        self.rows.advance()
        self._inputs = draw.ids[:, None]
        self._positions = self._positions + 1
        self.counters.steps += 1
        if routes is not None:
            for row, sequence in enumerate(self.running):
                sequence.routes += _bytes(routes[row])
        return draw

    def _compose(self) -> Sampler:
        """The batch has changed."""
        device = self.runner.device
        self._inputs = torch.tensor([[s.ids[-1]] for s in self.running], device=device)
        self._positions = torch.tensor([[len(s.ids) - 1] for s in self.running], device=device)
        self._sampler = Sampler(list(self.running), self.runner.vocab_size, device)
        return self._sampler

    def _mask(self, width: int) -> Tensor | None:
        """None if no row is padded: then the fastest kernels can be used."""
        if min(self.rows.lengths) == width:
            return None
        columns = torch.arange(width + 1, device=self.runner.device)
        mask = columns >= width - self._positions
        return mask[:, None, None, :] if self.runner.whole_mask else mask

    def _take(self, draw: Draw) -> None:
        batch = list(self.running)
        for sequence, token, logprob, top in zip(batch, draw.tokens, draw.logprobs, draw.top, strict=True):
            if not math.isfinite(logprob):
                where = f"after {len(sequence.ids)} tokens"
                self._fail([sequence], f"the model's logits are not finite {where}", poisoned=True)
                continue
            sequence.append(token, logprob, self.version, top)
            self.counters.sampled += 1
            finish = self._finish(sequence, token)
            if finish is not None:
                assert sequence.chunk is not None
                sequence.chunk.finish = finish
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

    def _pass(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: Any) -> tuple[Tensor, Tensor | None]:
        experts = self.runner.experts
        with experts.listen() if experts is not None else nullcontext():
            logits = self.runner.forward(ids, positions, mask, cache)
            return logits, None if experts is None else experts.heard(len(ids))

    # --- leaving -----------------------------------------------------------------------------------------------------

    def _end(self, sequence: Sequence, *, keep: bool = True, poisoned: bool = False) -> None:
        """Out of the batch or the queue; what it computed is kept for the next turn."""
        sequence.finished = True
        if sequence in self.running:
            row = self.running.index(sequence)
            length = self.rows.lengths[row]
            if keep and sequence.keep and sequence.epoch == self.epoch and self.prefixes.limit:
                key = sequence.ids.tobytes()[: length * ID_BYTES]
                self.prefixes.put(key, self.rows.read(row, length), bytes(sequence.routes))
            self._remove(row, poisoned=poisoned)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.kv = None
        chunk = sequence.take(*self._route_shape)
        if chunk is not None:
            self._outbox.append((sequence.stream, chunk))

    def _remove(self, row: int, *, poisoned: bool = False) -> None:
        self.rows.leave(row, poisoned=poisoned)
        self.running[row] = self.running[-1]
        self.running.pop()
        self._sampler = None

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the head of the queue, to be prefilled again with what it has sampled."""
        self._remove(self.running.index(sequence))
        sequence.forget()
        self.waiting.appendleft(sequence)
        self.counters.preempted += 1

    def _failed(self, sequences: list[Sequence], error: Exception) -> None:
        if not out_of_memory(error):
            logger.error("the model failed", exc_info=error)
            self._fail(sequences, f"the model failed: {type(error).__name__}: {error}", poisoned=True)
        elif len(self.running) > 1:
            self._preempt(self.running[-1])
        elif not self.prefixes.entries:
            self._fail(sequences, "out of memory", hint="lower max_batch_tokens, max_batch or max_tokens")
        self._free()

    def _free(self) -> None:
        """Memory that somebody needs more than the next turn does."""
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
            self._end(sequence, keep=False, poisoned=poisoned)
            text = message if hint is None else f"{message}\nhint: {hint}"
            error = EngineError(text, status=status, sampled_any=sequence.sampled > 0)
            self._outbox.append((sequence.stream, error))

    # --- handing over ------------------------------------------------------------------------------------------------

    def _deliver(self, everything: bool = False) -> None:
        """Hand chunks over, with one call for each event loop: at once if somebody finished or has just begun."""
        now = time.monotonic()
        due = everything or now - self._delivered_at >= self.limits.interval
        if not due and not self._outbox and all(s.delivered or s.chunk is None for s in self.running):
            return
        for sequence in self.running:
            chunk = sequence.take(*self._route_shape)
            if chunk is not None:
                sequence.delivered = True
                self._outbox.append((sequence.stream, chunk))
        items: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Sampled | EngineError]]] = {}
        for stream, item in self._outbox:
            items.setdefault(stream.loop, []).append((stream, item))
        self._outbox, self._delivered_at = [], now
        for loop, some in items.items():
            try:
                loop.call_soon_threadsafe(_put, some)
            except RuntimeError:  # the loop is closed, so nobody reads
                gone = {id(stream) for stream, _ in some}
                for sequence in self.running:
                    sequence.abandoned |= id(sequence.stream) in gone

    @property
    def _route_shape(self) -> tuple[int, int]:
        experts = self.runner.experts
        return (0, 0) if experts is None else (experts.width, experts.itemsize)


def _put(items: list[tuple[Stream, Sampled | EngineError]]) -> None:
    for stream, item in items:
        stream.put(item)


def _longest(key: bytes, sources: list[tuple[bytes, Kept | int]]) -> tuple[int, Kept | int | None]:
    """The source with the longest common prefix, at most all but the last id."""
    best: tuple[int, Kept | int | None] = (0, None)
    for other, source in sources:
        length = min(common(key, other), len(key) // ID_BYTES - 1)
        if length > best[0]:
            best = (length, source)
    return best


def _right_aligned(lengths: list[int], width: int, device: torch.device) -> Tensor:
    columns = torch.arange(width, device=device)
    return columns >= width - torch.tensor(lengths, device=device)[:, None]


def _bytes(routes: Tensor) -> bytes:
    data: bytes = routes.contiguous().numpy().tobytes()
    return data
