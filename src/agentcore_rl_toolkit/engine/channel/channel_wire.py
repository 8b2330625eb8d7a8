"""The messages of a channel, small tagged MessagePack in batches, and how they are sent."""

from __future__ import annotations

import asyncio
import dataclasses
from array import array
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from ...errors import EngineError
from ..base import IDS, Sampled, SampleRequest, Sampling

LARGEST_BATCH = 256 << 20
"""Bytes that one side reads at a time: expert routes of a long sequence are the largest part."""
_PER_BATCH = 8 << 20
"""Bytes of prompts and routes after which the next message waits for the next batch."""


class Link(Protocol):
    """One open connection, for whole batches."""

    async def send(self, data: bytes) -> None:
        """Send a batch. Raises `ConnectionError` if the other side is gone."""

    async def receive(self) -> bytes | None:
        """The next batch; None at the end."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message of the side that has the engine."""

    name: str
    """Of this engine in this process: the same when it connects again."""
    forms: bool
    """Whether it accepts forms."""
    run: str = ""
    """Of which run it is: only those of one run have the same weights."""


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """One sequence to sample: a `SampleRequest` without images."""

    id: int
    prompt: bytes
    sampling: Sampling
    model: str | None
    session_id: str
    choice: int
    stream: bool
    routes_from: int | None

    @classmethod
    def of(cls, number: int, request: SampleRequest) -> Ask:
        return cls(
            *(number, request.prompt.tobytes(), request.sampling, request.model),
            *(request.session_id, request.choice, request.stream, request.routes_from),
        )

    def request(self) -> SampleRequest:
        prompt = array(IDS, self.prompt)
        return SampleRequest(
            prompt, self.sampling, self.model, self.session_id, self.choice, self.stream, self.routes_from
        )


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The caller has left: stop sampling this sequence."""

    id: int


class Command(msgspec.Struct, frozen=True, tag="command"):
    """A call of `info`, `pause` or `resume`."""

    id: int
    name: Literal["info", "pause", "resume"]


class SampledTokens(msgspec.Struct, frozen=True, tag="tokens"):
    """What was sampled of a sequence since the last message. The last part has a finish."""

    id: int
    sampled: Sampled


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """A command has been carried out; for `info`, what the engine serves."""

    id: int
    models: tuple[str, ...] = ()
    context_length: int | None = None
    weight_version: str | None = None


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """The engine's error, for a sequence or a command."""

    id: int
    message: str
    status: int
    sampled_any: bool
    retry_after: float | None

    @classmethod
    def of(cls, number: int, error: EngineError) -> Failure:
        return cls(number, str(error), error.status, error.sampled_any, error.retry_after)

    def error(self) -> EngineError:
        return EngineError(self.message, status=self.status, sampled_any=self.sampled_any, retry_after=self.retry_after)


Message = Hello | Ask | Abort | Command | SampledTokens | Answer | Failure
_ENCODER = msgspec.msgpack.Encoder(enc_hook=float)  # numpy's numbers
_DECODER = msgspec.msgpack.Decoder(list[Message])


def encode(messages: Sequence[Message]) -> bytes:
    return _ENCODER.encode(messages)


def decode(data: bytes) -> list[Message]:
    """The messages of a batch; a `ValueError` for anything else."""
    return _DECODER.decode(data)


def take_batch(waiting: list[Message]) -> list[Message]:
    """Remove and return as many messages as fit into one batch: at least one."""
    size, count = 0, 0
    for message in waiting:
        size += _size(message)
        if count and size > _PER_BATCH:
            break
        count += 1
    taken = waiting[:count]
    del waiting[:count]
    return taken


def _size(message: Message) -> int:
    if isinstance(message, Ask):
        return len(message.prompt)
    if isinstance(message, SampledTokens):
        routes = message.sampled.routes
        return 32 * len(message.sampled.token_ids) + (0 if routes is None else len(routes.data))
    return 100


def plain(sampled: Sampled) -> Sampled:
    """With lists of plain numbers: engines may give any sequence."""
    return dataclasses.replace(sampled, token_ids=list(sampled.token_ids), logprobs=list(sampled.logprobs))


class Outbox:
    """Sends messages in order; those that accumulate while one batch is sent go with the next. `run` it as a task."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: list[Message] = []
        self._some = asyncio.Event()

    def add(self, message: Message) -> None:
        self._waiting.append(message)
        self._some.set()

    async def run(self) -> None:
        """Send until the link breaks, with a `ConnectionError`."""
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                await self._link.send(encode(take_batch(self._waiting)))
