"""An engine that says what a script tells it to: for tests and examples. It knows no tokenizer and no model.

It keeps the requests it got and those that were given up, and fails on demand in the ways real engines do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import EngineError
from .base import EngineInfo, Routes, Sampled, SampleRequest


@dataclass(frozen=True)
class Line:
    """One answer of a script. Plain token ids are a `Line` of those."""

    ids: Sequence[int]
    logprobs: Sequence[float | None] | None = None
    """Given as they are, be they too few or NaN; `logprob_of` each token if not said."""
    finish: str = "stop"
    fails: EngineError | None = None
    """Raised after all the ids, in place of a finish."""


Script = Sequence[Sequence[int] | Line] | Callable[[SampleRequest], Sequence[int] | Line]


def logprob_of(token_id: int) -> float:
    """What the engine says of a token, if its script doesn't.

    >>> logprob_of(3)
    -0.04
    """
    return -(token_id % 97 + 1) / 100


class ScriptedEngine:
    """Answers from a list, one for each request in their order, or by calling `script` with each request.

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
        self.forms = forms
        """Whether it is asked to keep to a form; it says what it is told to all the same."""
        self.chunk = chunk
        """Tokens given at a time."""
        self.delay = delay
        """Seconds these take."""
        self.weight_version = weight_version
        self.requests: list[SampleRequest] = []
        self.aborted: list[SampleRequest] = []
        self._script = script
        self._routes_width = routes_width
        self._context_length = context_length
        self._models = models
        self._going = asyncio.Event()
        self._going.set()

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        self.requests.append(request)
        number = len(self.requests) - 1
        ended = False
        try:
            await self._going.wait()
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

    async def pause(self) -> None:
        """New requests wait; running ones go on."""
        self._going.clear()

    async def resume(self) -> None:
        self._going.set()

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    def _line(self, request: SampleRequest, number: int) -> tuple[Line, list[float | None]]:
        """The line to say, cut where the request says, and its logprobs."""
        length, prompt = self._context_length, len(request.prompt)
        if length is not None and prompt >= length:
            raise EngineError(f"a prompt of {prompt} tokens leaves no room in a context of {length}", status=400)
        if not callable(self._script) and number >= len(self._script):
            raise EngineError(f"the script has {len(self._script)} answers, this is request {number + 1}", status=500)
        said = self._script(request) if callable(self._script) else self._script[number]
        line = said if isinstance(said, Line) else Line(said)
        ids, finish = list(line.ids), line.finish
        limits = [n for n in (request.sampling.max_tokens, length and length - prompt) if n is not None]
        if limits and min(limits) < len(ids):
            ids, finish = ids[: min(limits)], "length"
        stops = [ids.index(stop) for stop in request.sampling.stop_token_ids if stop in ids]
        if stops:
            ids, finish = ids[: min(stops) + 1], "stop"
        given = [logprob_of(token) for token in ids] if line.logprobs is None else line.logprobs
        return Line(ids, line.logprobs, finish, line.fails), list(given[: len(ids)])

    def _chunks(self, request: SampleRequest, line: Line, logprobs: list[float | None]) -> Iterator[Sampled]:
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
        """Routes that tell the position they belong to; like real ones they leave out the last token."""
        start = request.routes_from or 0
        positions = range(start, len(request.prompt) + sampled - 1)
        if not self._routes_width or not positions:
            return None
        return Routes(start, b"".join(bytes([p % 256]) * self._routes_width for p in positions), self._routes_width)
