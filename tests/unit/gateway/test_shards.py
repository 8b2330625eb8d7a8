"""One worker among several, when another does not do as it was told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from agentcore_rl_toolkit.gateway.shards import Shards
from support.raw_server import CLOSE, RawServer, Step

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
FAILED = b'HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"error":1}'
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf of it"


@asynccontextmanager
async def worker(other: str, said: str, seconds: float) -> AsyncIterator[str]:
    """The address of the first of two workers, whose own answer is always `said`."""

    async def own(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=said)

    shards = Shards(own, 0, ["http://127.0.0.1:1", other], ask_seconds=seconds)
    listening = await asyncio.get_running_loop().create_server(web.Server(shards.handle), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        await shards.close()


def ask(
    answer: Sequence[Step], method: str, path: str, own: str = "own", seconds: float = 60.0
) -> tuple[int, str, str | None]:
    """Status, text and Retry-After of what the first worker answers, when the second answers `answer`."""

    async def once() -> tuple[int, str, str | None]:
        with RawServer(answer).serving() as other:
            async with (
                worker(other.url, own, seconds) as url,
                aiohttp.ClientSession() as client,
                client.request(method, url + path) as said,
            ):
                return said.status, await said.text(), said.headers.get("Retry-After")

    return asyncio.run(once())


def not_mine(shards: Shards) -> str:
    return next(name for name in "abcdef" if shards.owner(name) == 1)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/pause"), ("POST", "/resume"), ("POST", "/drain"), ("PUT", "/weights")]
)
def test_all_workers_have_to_do_it(method: str, path: str) -> None:
    assert ask([OK], method, path) == (200, "own", None)
    assert ask([FAILED], method, path) == (502, '{"error":1}', None)
    status, text, retry_after = ask([CLOSE], method, path)
    assert (status, retry_after) == (503, "1")
    assert "worker 1 of the gateway is not there" in text


def test_a_worker_that_dies_before_it_answers() -> None:
    path = f"/sessions/{not_mine(Shards(None, 0, ['', '']))}/turns"  # type: ignore[arg-type]
    assert ask([OK], "GET", path) == (200, "{}", None)
    assert ask([CLOSE], "GET", path)[::2] == (503, "1")


def test_half_an_answer_is_not_taken_for_a_whole_one() -> None:
    path = f"/sessions/{not_mine(Shards(None, 0, ['', '']))}/turns"  # type: ignore[arg-type]
    with pytest.raises(aiohttp.ClientError):
        ask([HALF, CLOSE], "GET", path)


def test_a_worker_that_says_nothing_is_counted_out() -> None:
    well = {"status": "ok", "sessions": 1, "in_flight": 0, "replicas": 2, "replicas_well": 2}
    well |= {"log_failures": 0, "log_damaged": 0}
    told = json.dumps(well).encode()
    there = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(told), told)
    _, said, _ = ask([there], "GET", "/health", json.dumps(well))
    assert json.loads(said) == well | {"sessions": 2, "workers": 2}
    _, said, _ = ask([there], "GET", "/health", json.dumps(well | {"replicas": 3, "replicas_well": 3}))
    assert json.loads(said)["replicas_well"] == 2
    for silent in ([3600.0], [b"HTTP/1.1 200 OK\r\n", 3600.0], [there[:-3], 3600.0]):
        _, said, _ = ask(silent, "GET", "/health", json.dumps(well), 0.1)
        assert json.loads(said) == well | {"status": "degraded", "workers": 1}
    assert ask([3600.0], "GET", "/metrics", "turns 3", 0.1)[1] == "turns 3\n"


@pytest.mark.parametrize("path", ["/pause", "/drain"])
def test_what_all_have_to_do_takes_as_long_as_it_does(path: str) -> None:
    assert ask([0.5, OK], "POST", path, seconds=0.1) == (200, "own", None)
