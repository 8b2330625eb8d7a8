"""An engine that answers from a script: for tests and examples. It needs no tokenizer and no model.

It keeps the requests it got and those that callers gave up, and fails on demand in the ways real engines do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from ..common.object_repr import object_repr
from ..errors import EngineError
from .base import EngineInfo, HoldingEngine, Routes, Sampled, SampleRequest


@dataclass(frozen=True)
class ScriptedLine:
    """One reply of a script. Plain token ids stand for a `ScriptedLine` of those."""

    ids: Sequence[int]
    logprobs: Sequence[float | None] | None = None
    """Passed on as they are, even if too few or NaN; by default `logprob_of` each token."""
    finish: str = "stop"
    fails: EngineError | None = None
    """Raised after all the ids, in place of a finish."""


Script = Sequence[Sequence[int] | ScriptedLine] | Callable[[SampleRequest], Sequence[int] | ScriptedLine]


def logprob_of(token_id: int) -> float:
    """The engine's logprob of a token, unless its script has one.

    >>> logprob_of(3)
    -0.04
    """
    return -(token_id % 97 + 1) / 100


class ScriptedEngine(HoldingEngine):
    """Answers from a list, one entry per request in their order, or by calling `script` with each request.

    Example:
        >>> engine = ScriptedEngine([[5, 6, 7]])
        >>> engine.requests
        []
    """

    def __init__(
        self,
        script: Script,
        *,
        chunk: int = 1,
        delay: float = 0.0,
        weight_version: str | None = None,
        routes_width: int = 0,
        context_length: int | None = 4096,
        models: tuple[str, ...] = ("scripted",),
        forms: bool = False,
    ) -> None:
        super().__init__()
        self.forms = forms
        """Whether it accepts requests with a form; it answers from its script all the same."""
        self.chunk = chunk
        """Tokens per item of the stream."""
        self.delay = delay
        """Seconds per item."""
        self.weight_version = weight_version
        self.requests: list[SampleRequest] = []
        self.aborted: list[SampleRequest] = []
        self._script = script
        self._routes_width = routes_width
        self._context_length = context_length
        self._models = models

    def __repr__(self) -> str:
        return object_repr(self, requests=len(self.requests))

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        self.requests.append(request)
        number = len(self.requests) - 1
        ended = False
        try:
            await self.resumed.wait()
            line, logprobs = self._line(request, number)
            for sampled in self._chunks(request, line, logprobs):
                await asyncio.sleep(self.delay * max(1, len(sampled.token_ids) // self.chunk))
                ended = sampled.finish is not None
                yield sampled
            if line.fails is not None:
                raise line.fails
        except EngineError:
            ended = True
            raise
        finally:
            if not ended:
                self.aborted.append(request)

    async def info(self) -> EngineInfo:
        return EngineInfo(self._models, self._context_length, self.weight_version)

    def _line(self, request: SampleRequest, number: int) -> tuple[ScriptedLine, list[float | None]]:
        """The line to say, cut at the request's limits, and its logprobs."""
        length, prompt = self._context_length, len(request.prompt)
        if length is not None and prompt >= length:
            raise EngineError(f"a prompt of {prompt} tokens leaves no room in a context of {length}", status=400)
        if not callable(self._script) and number >= len(self._script):
            raise EngineError(f"the script has {len(self._script)} answers, this is request {number + 1}", status=500)
        entry = self._script(request) if callable(self._script) else self._script[number]
        line = entry if isinstance(entry, ScriptedLine) else ScriptedLine(entry)
        ids, finish = list(line.ids), line.finish
        limits = [n for n in (request.sampling.max_tokens, length and length - prompt) if n is not None]
        if limits and min(limits) < len(ids):
            ids, finish = ids[: min(limits)], "length"
        stops = [ids.index(stop) for stop in request.sampling.stop_token_ids if stop in ids]
        if stops:
            ids, finish = ids[: min(stops) + 1], "stop"
        given = [logprob_of(token) for token in ids] if line.logprobs is None else line.logprobs
        return ScriptedLine(ids, line.logprobs, finish, line.fails), list(given[: len(ids)])

    def _chunks(self, request: SampleRequest, line: ScriptedLine, logprobs: list[float | None]) -> Iterator[Sampled]:
        size = self.chunk if request.stream else max(1, len(line.ids))
        for at in range(0, max(1, len(line.ids)), size):
            end = at + size
            sampled = Sampled(list(line.ids[at:end]), logprobs[at:end], weight_version=self.weight_version)
            if request.sampling.top_logprobs:
                sampled.top_logprobs = [{token: logprob_of(token)} for token in sampled.token_ids]
            if end >= len(line.ids) and line.fails is None:
                sampled.finish = line.finish
                sampled.routes = self._routes(request, len(line.ids))
            yield sampled

    def _routes(self, request: SampleRequest, sampled: int) -> Routes | None:
        """Routes that encode the position they belong to; like real ones they leave out the last token."""
        start = request.routes_from or 0
        positions = range(start, len(request.prompt) + sampled - 1)
        if not self._routes_width or not positions:
            return None
        return Routes(start, b"".join(bytes([p % 256]) * self._routes_width for p in positions), self._routes_width)
