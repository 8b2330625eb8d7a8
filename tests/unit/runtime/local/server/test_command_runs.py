"""A command as the wire serves it: once, to the latest connection, from the beginning, never silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from botocore.eventstream import EventStreamBuffer

from agentcore_rl_toolkit.common.eventstream import KEEP_ALIVE
from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime import CommandEvent
from agentcore_rl_toolkit.runtime.local.server.command_runs import CommandRun, CommandRuns

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
        frames = CommandRun(source()).frames()
        assert payloads(await anext(frames)) == [START]  # the command has said nothing
        source.say("a", END)
        assert await rest(frames) == [
            b'{"contentDelta": {"stdout": "a"}}',
            b'{"contentStop": {"exitCode": 0, "status": "COMPLETED"}}',
        ]

    asyncio.run(body())


def test_in_silence_something_is_sent() -> None:
    async def body() -> None:
        source = Source()
        frames = CommandRun(source(), silent_seconds=0.001).frames()
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
            frames = [frame async for frame in CommandRun(source()).frames()]
            assert len(frames) == 3
            assert name in frames[-1]
            assert source.closed.is_set()

    asyncio.run(body())


def test_the_same_request_again_gets_the_same_answer() -> None:
    async def body() -> None:
        source, runs = Source(), CommandRuns()
        first = runs.run("key", source).frames()
        await anext(first)
        source.say("a")
        assert b"a" in await anext(first)
        second = runs.run("key", source).frames()  # the first connection is broken, and nobody has noticed yet
        assert b"contentStart" in await anext(second)
        with pytest.raises(RuntimeFault, match="the same request came again"):
            await anext(first)
        source.say("b", END)
        whole = [START, b'{"contentDelta": {"stdout": "a"}}', b'{"contentDelta": {"stdout": "b"}}']
        assert [START, *await rest(second)][:3] == whole
        assert (await rest(runs.run("key", source).frames()))[:3] == whole  # it has ended
        assert source.started == 1
        runs.run("another key", source)
        runs.run(None, source)
        runs.run(None, source)
        await asyncio.sleep(0)
        assert source.started == 4
        await runs.close()

    asyncio.run(body())


def test_a_caller_that_left_has_some_time_to_come_back() -> None:
    async def body() -> None:
        source = Source()
        run = CommandRun(source(), away_seconds=3600)
        first = run.frames()
        await anext(first)
        await first.aclose()
        source.say("a", END)
        assert len(await rest(run.frames())) == 3

    asyncio.run(body())


def test_a_command_that_nobody_reads_is_ended() -> None:
    async def body() -> None:
        source = Source()
        run = CommandRun(source(), away_seconds=0.001)
        first = run.frames()
        await anext(first)
        await first.aclose()
        await asyncio.wait_for(source.closed.wait(), 30)
        assert b"nobody read" in (await rest(run.frames()))[-1]

    asyncio.run(body())


def test_a_command_whose_answer_could_not_even_begin_is_ended() -> None:
    """Its connection broke before the first frame was asked for."""

    async def body() -> None:
        source = Source()
        frames = CommandRun(source(), away_seconds=0).frames()
        await asyncio.wait_for(source.closed.wait(), 30)
        await frames.aclose()

    asyncio.run(body())


def test_a_caller_of_a_silent_command_that_left_is_noticed() -> None:
    async def body() -> None:
        source, gone = Source(), False
        frames = CommandRun(source(), away_seconds=0, silent_seconds=0.001).frames(lambda: gone)
        assert payloads(await anext(frames)) == [START]
        gone = True
        assert await rest(frames) == []
        await asyncio.wait_for(source.closed.wait(), 30)

    asyncio.run(body())


def test_what_is_kept_is_bounded() -> None:
    async def body() -> None:
        source = Source()
        run = CommandRun(source())
        frames = run.frames()
        source.say(*["x" * 65536] * 100, END)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert source.taken <= 17  # no more are asked for
        assert len(await rest(frames)) == 102  # with a reader all of them come
        with pytest.raises(RuntimeFault, match="more than the 1,048,576 bytes") as caught:
            run.frames()
        assert caught.value.code == "ConflictException"

    asyncio.run(body())


def test_commands_that_have_ended_are_forgotten_in_time() -> None:
    async def body() -> None:
        runs, started = CommandRuns(), 0

        async def events() -> AsyncIterator[CommandEvent]:
            nonlocal started
            started += 1
            yield END

        for key in range(40):
            await rest(runs.run(key, events).frames())
        await rest(runs.run(39, events).frames())
        assert started == 40
        await rest(runs.run(0, events).frames())
        assert started == 41

    asyncio.run(body())


def test_closing_ends_them_all() -> None:
    async def body() -> None:
        sources, runs = [Source(), Source()], CommandRuns()
        frames = [runs.run(key, source).frames() for key, source in enumerate(sources)]
        for one in frames:
            await anext(one)
        await runs.close()
        assert all(source.closed.is_set() for source in sources)
        for one in frames:
            assert b"nobody read" in (await rest(one))[-1]

    asyncio.run(body())
