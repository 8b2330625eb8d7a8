"""A command as the wire serves it: it starts at once and is never silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from botocore.eventstream import EventStreamBuffer

from agentcore_rl_toolkit.common.eventstream import KEEP_ALIVE
from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime import CommandEvent
from agentcore_rl_toolkit.runtime.local.server.command_stream import stream_command

END = CommandEvent(exit_code=0, status="COMPLETED")
START = b'{"contentStart":{}}'


class Source:
    """A command whose events the test gives."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[CommandEvent | Exception] = asyncio.Queue()
        self.taken, self.started, self.closed = 0, 0, asyncio.Event()

    async def __call__(self) -> AsyncGenerator[CommandEvent, None]:
        self.started += 1
        try:
            while True:
                event = await self.events.get()
                if isinstance(event, Exception):
                    raise event
                self.taken += 1
                yield event
                if event.status is not None:
                    return
        finally:
            self.closed.set()

    def say(self, *events: CommandEvent | str | Exception) -> None:
        for event in events:
            self.events.put_nowait(CommandEvent(stdout=event) if isinstance(event, str) else event)


def payloads(frame: bytes) -> list[bytes]:
    buffer = EventStreamBuffer()
    buffer.add_data(frame)
    return [message.payload for message in buffer]


async def rest(frames: AsyncIterator[bytes]) -> list[bytes]:
    return [payload async for frame in frames for payload in payloads(frame)]


def test_it_starts_at_once_and_ends_with_the_command() -> None:
    async def body() -> None:
        source = Source()
        frames = stream_command(source())
        assert payloads(await anext(frames)) == [START]  # before any output
        source.say("a", END)
        assert await rest(frames) == [
            b'{"contentDelta": {"stdout": "a"}}',
            b'{"contentStop": {"exitCode": 0, "status": "COMPLETED"}}',
        ]

    asyncio.run(body())


def test_a_silence_is_filled() -> None:
    async def body() -> None:
        source = Source()
        frames = stream_command(source(), silent_seconds=0.001)
        await anext(frames)
        assert [await anext(frames) for _ in range(3)] == [KEEP_ALIVE] * 3
        source.say(END)
        assert (await rest(frames))[-1].startswith(b'{"contentStop"')

    asyncio.run(body())


def test_faults_end_the_stream() -> None:
    async def body() -> None:
        for error, name in (
            (RuntimeFault("gone", code="RuntimeClientError"), b"runtimeClientError"),
            (ValueError("broken"), b"internalServerException"),
        ):
            source = Source()
            source.say("a", error)
            frames = [frame async for frame in stream_command(source())]
            assert len(frames) == 3
            assert name in frames[-1]
            assert source.closed.is_set()

    asyncio.run(body())


def test_a_caller_that_leaves_ends_the_command() -> None:
    async def body() -> None:
        source = Source()
        frames = stream_command(source())
        await anext(frames)
        source.say("a")
        await anext(frames)
        await frames.aclose()
        assert source.closed.is_set()

    asyncio.run(body())


def test_the_caller_of_a_silent_command_is_checked_on() -> None:
    async def body() -> None:
        source, gone = Source(), False
        frames = stream_command(source(), lambda: gone, silent_seconds=0.001)
        await anext(frames)
        assert await anext(frames) == KEEP_ALIVE
        gone = True
        assert await rest(frames) == []
        assert source.closed.is_set()

    asyncio.run(body())


def test_output_is_pulled_not_buffered() -> None:
    async def body() -> None:
        source = Source()
        source.say(*"abcdefgh", END)
        frames = stream_command(source())
        await anext(frames)
        await anext(frames)
        assert source.taken <= 2
        await frames.aclose()

    asyncio.run(body())
