"""One sequence being sampled: the request, the tokens so far, and the stream its next tokens go to."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from ...errors import EngineError
from ..base import Sampled, Sampling, count_version

if TYPE_CHECKING:
    from .grammar import Grammar
    from .kv_cache import KV


class TokenStream:
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
    """A request's state. Once submitted, only the decoder's thread touches it, except for `abandoned`."""

    ids: array[int]
    """Prompt and sampled ids together."""
    sampling: Sampling
    limit: int
    """The length at which it ends."""
    stop_ids: frozenset[int]
    keep: bool
    """Whether its keys and values are worth keeping for the session's next turn."""
    rng: Random
    stream: TokenStream
    streamed: bool = True
    """Whether tokens are handed over as they come, or all at the end."""
    grammar: Grammar | None = None
    prompt_length: int = field(init=False)
    abandoned: bool = False
    """The caller stopped reading the stream."""
    finished: bool = False
    delivered: bool = False
    """Whether any token has been handed over."""
    kv: KV | None = None
    """Of the first `filled` ids; None while the batch's cache has them."""
    filled: int = 0
    epoch: int = 0
    """Which update of the weights the keys and values were computed after."""
    versions: list[tuple[str, int]] = field(default_factory=list)
    """Weight versions, and how many ids were sampled with each."""
    penalty_state: Any = None
    """The sampler's counts of seen tokens, kept between steps."""
    chunk: Sampled | None = None
    """Sampled, but not handed over yet."""

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)

    @property
    def sampled(self) -> int:
        return len(self.ids) - self.prompt_length

    @property
    def prefilled(self) -> bool:
        """Whether only the last id is left, which the batch's next step takes."""
        return self.filled == len(self.ids) - 1

    def drop_kv(self) -> None:
        """Forget its keys and values; it has to be prefilled again."""
        self.kv, self.filled = None, 0

    def append(self, token: int, logprob: float, version: str, top: dict[int, float] | None) -> None:
        self.ids.append(token)
        if self.chunk is None:
            self.chunk = Sampled([], [], top_logprobs=None if top is None else [])
        self.chunk.token_ids.append(token)
        self.chunk.logprobs.append(logprob)
        self.chunk.weight_version = version
        if top is not None and self.chunk.top_logprobs is not None:
            self.chunk.top_logprobs.append(top)
        count_version(self.versions, version, 1)

    def finish(self, reason: str) -> None:
        assert self.chunk is not None
        self.chunk.finish, self.chunk.versions = reason, tuple(self.versions)
