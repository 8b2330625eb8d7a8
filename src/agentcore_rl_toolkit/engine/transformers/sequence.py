"""One sequence on its way: what was asked, what was sampled so far, and where its next tokens go."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from ...errors import EngineError
from ..base import Routes, Sampled, Sampling

if TYPE_CHECKING:
    from .grammar import Grammar
    from .kv_cache import KV


class Stream:
    """Hands a sequence's chunks from the decoder's thread to the event loop that asked for them."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._items: deque[Sampled | EngineError] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Sampled | EngineError) -> None:
        """On the event loop only."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Sampled:
        while not self._items:
            self._waiter = self.loop.create_future()
            await self._waiter
        item = self._items.popleft()
        if isinstance(item, EngineError):
            raise item
        return item


@dataclass(eq=False)
class Sequence:
    """A request's state. Once submitted, only the decoder's thread touches it (but `abandoned`)."""

    ids: array[int]
    """Prompt and sampled together."""
    sampling: Sampling
    limit: int
    """The length at which it ends."""
    stop_ids: frozenset[int]
    keep: bool
    """Whether its keys and values are worth keeping for the session's next turn."""
    rng: Random
    stream: Stream
    streamed: bool = True
    """Whether tokens are handed over as they come, or all at the end."""
    grammar: Grammar | None = None
    prompt_length: int = field(init=False)
    abandoned: bool = False
    """Nobody reads the stream any more."""
    finished: bool = False
    delivered: bool = False
    """Whether any token has been handed over."""
    kv: KV | None = None
    """Of the first `filled` ids; in the batch's rows instead while it is running."""
    filled: int = 0
    epoch: int = 0
    """Of the weights that the keys and values were computed with."""
    routes: bytearray = field(default_factory=bytearray)
    """Of the first `filled` ids, and of those decoded since."""
    routed: int = 0
    """How many ids' routes were handed over, or are not wanted."""
    versions: list[tuple[str, int]] = field(default_factory=list)
    """Weight versions and how many sampled ids each is behind."""
    marks: Any = None
    """What the sampler remembers of it between steps."""
    chunk: Sampled | None = None
    """Sampled, but not handed over yet."""

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)

    @property
    def sampled(self) -> int:
        return len(self.ids) - self.prompt_length

    def forget(self) -> None:
        """Its keys and values are gone; it has to be prefilled again."""
        self.kv, self.filled = None, 0
        self.routes.clear()

    @property
    def prefilled(self) -> bool:
        """Whether only the last id is left, which goes with the batch."""
        return self.filled == len(self.ids) - 1

    def append(self, token: int, logprob: float, version: str, top: dict[int, float] | None) -> None:
        self.ids.append(token)
        if self.chunk is None:
            self.chunk = Sampled([], [], top_logprobs=None if top is None else [])
        self.chunk.token_ids.append(token)
        self.chunk.logprobs.append(logprob)
        self.chunk.weight_version = version
        if top is not None and self.chunk.top_logprobs is not None:
            self.chunk.top_logprobs.append(top)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1] = (version, self.versions[-1][1] + 1)
        else:
            self.versions.append((version, 1))

    def finish(self, reason: str) -> None:
        assert self.chunk is not None
        self.chunk.finish, self.chunk.versions = reason, tuple(self.versions)

    def take(self, route_shape: tuple[int, int]) -> Sampled | None:
        """What there is to hand over, with the routes since the last time."""
        chunk, self.chunk = self.chunk, None
        width, itemsize = route_shape
        if chunk is not None and width and len(self.routes) > self.routed * width * itemsize:
            chunk.routes = Routes(self.routed, bytes(self.routes[self.routed * width * itemsize :]), width, itemsize)
            self.routed += chunk.routes.count
        return chunk
