"""A command's events as a session should send them, and anything else it might send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import RuntimeFault
from agentcore_rl_toolkit.runtime import CommandEvent
from agentcore_rl_toolkit.runtime.hosting.commands import read_events

END = b'{"exit_code": 0, "status": "COMPLETED"}\n'


def read(*chunks: bytes, endless: bool = False, seconds: float = 60) -> list[CommandEvent]:
    async def sent() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
        while endless:
            yield chunks[-1]

    async def collect() -> list[CommandEvent]:
        return [event async for event in read_events(sent(), seconds)]

    return asyncio.run(collect())


def test_events_however_they_are_cut() -> None:
    whole = b'{"stdout": "a\\n"}\n{"stderr": "gr\xc3\xbcn"}\n' + END
    events = [CommandEvent(stdout="a\n"), CommandEvent(stderr="grün"), CommandEvent(exit_code=0, status="COMPLETED")]
    assert read(whole) == events
    assert read(*(whole[i : i + 1] for i in range(len(whole)))) == events


def test_output_full_of_what_json_escapes() -> None:
    """65,536 NULs, as a session sends them, are 393,216 characters of JSON."""
    text = "\0" * 65536
    assert read(json.dumps({"stdout": text}).encode() + b"\n", END)[0].stdout == text


def test_what_comes_after_the_end_is_not_read() -> None:
    assert len(read(END + b"nonsense\n", endless=True)) == 1


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert read(b'{"stdout": "\\ud800!"}\n' + END)[0].stdout == "?!"


def fault(*chunks: bytes, **more: bool) -> str:
    with pytest.raises(RuntimeFault) as caught:
        read(*chunks, **more)  # type: ignore[arg-type]
    assert caught.value.code == "RuntimeClientError"
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        *(
            b"",
            b"nonsense",
            b"[]",
            b"{}",
            b"null",
            b"\0",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"stdout": 1}',
            b'{"stdout": null}',
        ),
        *(b'{"stdout": "a", "x": 1}', b'{"exit_code": "0", "status": "COMPLETED"}', b'{"exit_code": 0, "status": "x"}'),
        *(
            b'{"exit_code": 1e300, "status": "COMPLETED"}',
            b'{"exit_code": true, "status": "COMPLETED"}',
            b'{"exit_code": 0}',
        ),
        *(b'{"exit_code": %d, "status": "COMPLETED"}' % 10**30, b'{"exit_code": NaN, "status": "COMPLETED"}'),
        b'{"__class__": "x"}',
    ],
)
def test_lines_that_are_not_events(line: bytes) -> None:
    assert "is not an event" in fault(line + b"\n", END)


def test_a_line_without_end_is_not_kept() -> None:
    assert "a line of more than 1,048,576 bytes" in fault(b"x" * 65536, endless=True)


def test_a_stream_that_breaks_off() -> None:
    assert "broke off before the command ended" in fault(b'{"stdout": "a"}\n')
    assert "broke off before the command ended" in fault()


def test_a_session_that_never_ends_its_command() -> None:
    async def silence() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def collect() -> None:
        async for _ in read_events(silence(), 0.01, grace=0.01):
            pass

    with pytest.raises(RuntimeFault, match="did not end within"):
        asyncio.run(collect())


@given(st.lists(st.binary()))
def test_no_bytes_are_anything_but_events_or_one_fault(chunks: Iterable[bytes]) -> None:
    with pytest.raises(RuntimeFault):
        read(*chunks)
