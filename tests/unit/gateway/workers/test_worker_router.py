"""One worker among several, when another does not do as it was told."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.http.gateway_app import App
from agentcore_rl_toolkit.gateway.http.http_server import http_server
from agentcore_rl_toolkit.gateway.record.session import SessionSettings
from agentcore_rl_toolkit.gateway.remote.frames import BatchAnswer, FrameReader, pack
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from agentcore_rl_toolkit.gateway.workers.worker_router import WorkerRouter
from support.gateway import MODEL, ids, tokenizer
from support.raw_server import CLOSE, RawServer, Step

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
FAILED = b'HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"error":1}'
HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf of it"


@asynccontextmanager
async def worker(other: str, said: str, seconds: float) -> AsyncIterator[str]:
    """The address of the first of two workers, whose own answer is always `said`."""

    async def own(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=said)

    shards = WorkerRouter(own, 0, ["http://127.0.0.1:1", other], state_seconds=seconds)
    listening = await asyncio.get_running_loop().create_server(
        http_server(shards.handle, max_body_bytes=10_000, body_seconds=60), "127.0.0.1", 0
    )
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


def not_mine(shards: WorkerRouter) -> str:
    return next(name for name in "abcdef" if shards.owner(name) == 1)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/pause"), ("POST", "/resume"), ("POST", "/drain"), ("PUT", "/weights")]
)
def test_all_workers_have_to_do_it(method: str, path: str) -> None:
    assert ask([OK], method, path) == (200, "own", None)
    assert ask([FAILED], method, path) == (502, '{"error":1}', None)
    status, text, retry_after = ask([CLOSE], method, path)
    assert (status, retry_after) == (503, "1")
    assert "worker 1 of the gateway does not answer" in text


def test_a_worker_that_dies_before_it_answers() -> None:
    path = f"/sessions/{not_mine(WorkerRouter(None, 0, ['', '']))}/turns"  # type: ignore[arg-type]
    assert ask([OK], "GET", path) == (200, "{}", None)
    assert ask([CLOSE], "GET", path)[::2] == (503, "1")


def test_half_an_answer_is_not_taken_for_a_whole_one() -> None:
    path = f"/sessions/{not_mine(WorkerRouter(None, 0, ['', '']))}/turns"  # type: ignore[arg-type]
    with pytest.raises(aiohttp.ClientError):
        ask([HALF, CLOSE], "GET", path)


def test_a_worker_that_says_nothing_is_counted_out() -> None:
    well = {"status": "ok", "sessions": 1, "in_flight": 0, "replicas": 2, "replicas_well": 2}
    well |= {"log_error": None, "log_failures": 0, "log_damaged": 0}
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


MARK = "X-Gateway-Worker"


def passed(headers: dict[str, str]) -> list[bytes]:
    """What the second worker is asked when the first, whose mark is `secret`, is told to drain with these headers."""

    async def once() -> None:
        async def own(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response()

        shards = WorkerRouter(own, 0, ["http://127.0.0.1:1", other.url], mark="secret")
        listening = await asyncio.get_running_loop().create_server(
            http_server(shards.handle, max_body_bytes=10_000, body_seconds=60), "127.0.0.1", 0
        )
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/drain"
        async with aiohttp.ClientSession() as client, client.post(url, headers=headers) as said:
            assert said.status == 200
        listening.close()
        await shards.close()

    with RawServer([OK]).serving() as other:
        asyncio.run(once())
    return other.requests


def test_only_a_worker_can_say_that_it_passed_a_request_on() -> None:
    assert passed({MARK: "secret"}) == []
    for outsider in ("0", "1", "", "Secret"):
        [request] = passed({MARK: outsider, MARK.lower(): outsider})
        assert request.lower().count(MARK.lower().encode()) == 1
        assert b"X-Gateway-Worker: secret\r\n" in request


def test_what_the_first_worker_has_judged_is_not_judged_again() -> None:
    """The second is asked under another name, so that the request would seem to be another site's."""
    [request] = passed({"Origin": "http://localhost:9000", "Sec-Fetch-Site": "same-origin", "X-Other": "stays"})
    assert b"origin" not in request.lower()
    assert b"sec-fetch" not in request.lower()
    assert b"X-Other: stays" in request


# --- batches ---------------------------------------------------------------------------------------------------------


def frame(name: str) -> bytes:
    return pack(BatchAnswer(name))


def of_length(body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (length or len(body), body)


async def fold(others: Sequence[str], names: Sequence[str], until: int) -> list[BatchAnswer]:
    """The first frames that answer a batch, sent to worker 0, whose own frames need no request."""

    async def own(path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        for name in body["session_ids"]:
            yield frame(name)

    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        raise AssertionError("it asks itself")

    router = WorkerRouter(refuse, 0, ["http://127.0.0.1:1", *others], batch=own)
    handled = http_server(router.handle, max_body_bytes=10_000, body_seconds=60)
    listening = await asyncio.get_running_loop().create_server(handled, "127.0.0.1", 0)
    url, reader, heard = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", FrameReader(), list[BatchAnswer]()
    try:
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{url}/batch/fold", json={"session_ids": names}) as said,
        ):
            async for piece in said.content.iter_any():
                heard += reader.feed(piece)
                if len(heard) >= until:
                    break
    finally:
        listening.close()
        await router.close()
    return heard


def owned(workers: int) -> list[list[str]]:
    """Names of sessions of each worker."""
    router = WorkerRouter(None, 0, [""] * workers)  # type: ignore[arg-type]
    names = [f"s{number}" for number in range(50)]
    return [[name for name in names if router.owner(name) == worker] for worker in range(workers)]


def test_a_batch_waits_for_one_worker_beside_the_others() -> None:
    mine, silent, others = (names[0] for names in owned(3))
    with RawServer([3600.0]).serving() as one, RawServer([of_length(frame(others))]).serving() as other:
        heard = asyncio.run(asyncio.wait_for(fold([one.url, other.url], [silent, others, mine], 2), 60))
    assert {said.session_id for said in heard} == {others, mine}


def test_a_worker_that_dies_amid_a_batch_leaves_no_half_a_frame() -> None:
    mine, names = (part[:2] for part in owned(2))
    begun = frame(names[0]) + frame(names[1])[:-1]
    with RawServer([of_length(begun, 1000), CLOSE]).serving() as other:
        heard = asyncio.run(fold([other.url], [*names, *mine], 4))
    faults = {said.session_id: said.fault.code if said.fault else None for said in heard}
    assert faults == {mine[0]: None, mine[1]: None, names[0]: None, names[1]: "worker_unavailable"}


# --- real workers ----------------------------------------------------------------------------------------------------

KEY = {"Authorization": "Bearer admin"}
GONE = "http://127.0.0.1:1"


class Brittle(ScriptedEngine):
    """An engine that can fail at what it is told, or take its time."""

    def __init__(self) -> None:
        super().__init__([ids("four")] * 4, models=(MODEL,))
        self.fails: set[str] = set()
        self.told: list[str] = []
        self.slow = False

    async def pause(self) -> None:
        self.told.append("pause")
        await super().pause()
        if self.slow:
            await asyncio.sleep(3600)
        self._fail("pause")

    async def resume(self) -> None:
        self.told.append("resume")
        self._fail("resume")
        await super().resume()

    def _fail(self, action: str) -> None:
        if action in self.fails:
            raise EngineError("the engine is on fire")


class Workers:
    """Several real workers in this process; `urls` can be changed to have one gone."""

    def __init__(self, count: int) -> None:
        self.engines = [Brittle() for _ in range(count)]
        self.body_seconds = 60.0
        self.urls = [""] * count
        self.cores: list[Core] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[aiohttp.ClientSession]:
        async with AsyncExitStack() as stack:
            for number, engine in enumerate(self.engines):
                core = Core(engine, ChatRenderer(Tokenizer(tokenizer()), renderer="qwen3"))
                await core.start()
                stack.push_async_callback(core.close)
                app = App(core, admin_key="admin", url=lambda number=number: self.urls[number])
                admit, paused = app.check_admin, lambda core=core: core.gate.paused
                shards = WorkerRouter(app.handle, number, self.urls, mark="m", paused=paused, admit=admit)
                stack.push_async_callback(shards.close)
                handled = http_server(shards.handle, max_body_bytes=10_000, body_seconds=self.body_seconds)
                stack.push_async_callback(handled.shutdown, 0.1)
                listening = await asyncio.get_running_loop().create_server(handled, "127.0.0.1", 0)
                stack.callback(listening.close)
                self.urls[number] = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
                self.cores.append(core)
            connector = aiohttp.TCPConnector(force_close=True)  # a broken body ends its connection
            yield await stack.enter_async_context(aiohttp.ClientSession(headers=KEY, connector=connector))

    @property
    def paused(self) -> list[bool]:
        return [core.gate.paused for core in self.cores]

    @property
    def versions(self) -> list[str | None]:
        return [core.gate.version for core in self.cores]


async def tell(client: aiohttp.ClientSession, url: str, method: str, **more: Any) -> tuple[int, str]:
    async with client.request(method, url, **more) as said:
        return said.status, await said.text()


def test_a_pause_with_a_worker_away_pauses_no_worker() -> None:
    async def run() -> None:
        workers = Workers(3)
        async with workers.serving() as client:
            first, second, third = workers.urls
            workers.urls[2] = GONE
            status, text = await tell(client, f"{first}/pause", "POST")
            assert status == 503
            assert "worker 2 of the gateway does not answer" in text
            assert workers.paused == [False, False, False]
            assert workers.engines[1].told == ["pause", "resume"]
            workers.urls[2] = third
            assert (await tell(client, f"{first}/pause", "POST"))[0] == 200
            assert workers.paused == [True, True, True]
            workers.urls[2] = GONE  # paused as they are already, they stay so
            assert (await tell(client, f"{second}/pause", "POST"))[0] == 503
            assert workers.paused == [True, True, True]

    asyncio.run(run())


@pytest.mark.parametrize("broken", [0, 1])
def test_a_pause_that_fails_in_one_worker_pauses_none(broken: int) -> None:
    """In another worker, or in the one that was asked."""

    async def run() -> None:
        workers = Workers(3)
        async with workers.serving() as client:
            workers.engines[broken].fails = {"pause"}
            status, text = await tell(client, f"{workers.urls[0]}/pause", "POST")
            assert status == 502
            assert "on fire" in text
            assert workers.paused == [False, False, False]
            workers.engines[broken].fails = set()
            assert (await tell(client, f"{workers.urls[0]}/pause", "POST"))[0] == 200
            assert workers.paused == [True, True, True]

    asyncio.run(run())


def test_a_pause_whose_caller_disconnects_pauses_no_worker() -> None:
    async def run() -> None:
        workers = Workers(3)
        async with workers.serving() as client:
            workers.engines[1].slow = True
            asking = asyncio.create_task(tell(client, f"{workers.urls[0]}/pause", "POST"))
            while "pause" not in workers.engines[1].told or not workers.paused[2]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            asking.cancel()
            while workers.paused != [False, False, False]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert workers.engines[2].told == ["pause", "resume"]

    asyncio.run(asyncio.wait_for(run(), 30))


@pytest.mark.parametrize("gone", [1, 2])
def test_resuming_and_naming_weights_reaches_all_that_are_there(gone: int) -> None:
    """Both say how things are; whoever was away has to be told again, and the others are not held up for it."""

    async def run() -> None:
        workers = Workers(3)
        async with workers.serving() as client:
            first, there = workers.urls[0], workers.urls[gone]
            assert (await tell(client, f"{first}/pause", "POST"))[0] == 200
            workers.urls[gone] = GONE
            status, text = await tell(client, f"{first}/weights", "PUT", json={"version": "v2"})
            assert status == 503
            assert f"worker {gone} of the gateway does not answer" in text
            assert workers.versions == [None if number == gone else "v2" for number in range(3)]
            assert (await tell(client, f"{first}/resume", "POST"))[0] == 503
            assert workers.paused == [number == gone for number in range(3)]
            workers.urls[gone] = there
            assert (await tell(client, f"{first}/weights", "PUT", json={"version": "v2"}))[0] == 200
            assert (await tell(client, f"{first}/resume", "POST"))[0] == 200
            assert (workers.versions, workers.paused) == (["v2"] * 3, [False] * 3)

    asyncio.run(run())


def test_bodies_that_are_packed_get_to_another_worker() -> None:
    async def run() -> None:
        workers = Workers(2)
        async with workers.serving() as client:
            packed = {"data": gzip.compress(b'{"version": "v7"}'), "headers": {"Content-Encoding": "gzip"}}
            assert (await tell(client, f"{workers.urls[0]}/weights", "PUT", **packed))[0] == 200
            assert workers.versions == ["v7", "v7"]
            for _ in range(2):  # one of each worker
                packed["data"] = gzip.compress(b"{}")
                status, text = await tell(client, f"{workers.urls[0]}/sessions", "POST", **packed)
                assert status == 201, text
                base = json.loads(text)["base_url"]
                for url in workers.urls:  # at home, and passed on
                    at = url + base[base.index("/sessions/") :]
                    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
                    packed["data"] = gzip.compress(json.dumps(asked).encode())
                    status, text = await tell(client, f"{at}/chat/completions", "POST", **packed)
                    assert status == 200, text
                    assert json.loads(text)["choices"][0]["message"]["content"] == "four"

    asyncio.run(run())


BROKEN = gzip.compress(b'{"version": "v7"}', mtime=0)[:-12] + b"x" * 12


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/pause"), ("POST", "/resume"), ("POST", "/drain"), ("PUT", "/weights"), ("POST", "/sessions")],
)
@pytest.mark.parametrize(("body", "expected"), [(BROKEN, 400), (gzip.compress(b" " * 20_000), 413)])
def test_bodies_that_cannot_be_read_change_nothing(method: str, path: str, body: bytes, expected: int) -> None:
    async def run() -> None:
        workers = Workers(2)
        async with workers.serving() as client:
            packed = {"data": body, "headers": {"Content-Encoding": "gzip"}}
            status, text = await tell(client, workers.urls[0] + path, method, **packed)
            assert status == expected, text
            assert json.loads(text)["error"]["message"]
            assert (workers.paused, workers.versions) == ([False, False], [None, None])
            assert all(len(core.sessions) == 0 for core in workers.cores)
            name = not_mine(WorkerRouter(None, 0, ["", ""]))  # type: ignore[arg-type]
            key = workers.cores[1].sessions.open(SessionSettings(name)).key
            status, text = await tell(client, f"{workers.urls[0]}/sessions/{name}.{key}/v1/messages", "POST", **packed)
            assert status == expected, text
            assert json.loads(text)["type"] == "error"  # in the words of the wire it came over

    asyncio.run(run())


async def raw(url: str, request: bytes) -> bytes:
    """The answer to the bytes of a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.lower().splitlines()[1:-1])
    chunked = fields.get(b"transfer-encoding") == b"chunked"
    body = await (reader.readuntil(b"0\r\n\r\n") if chunked else reader.readexactly(int(fields[b"content-length"])))
    writer.close()
    return head + body


ASKED = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).encode()
PACKED = gzip.compress(ASKED)


@pytest.mark.parametrize(
    ("headers", "body", "status", "said"),
    [
        (b"Content-Length: %d" % len(ASKED), ASKED, 200, b"four"),
        (b"Content-Encoding: gzip\r\nContent-Length: %d" % len(PACKED), PACKED, 200, b"four"),
        (b"Content-Length: %d\r\nX: wrong" % (10 << 20), ASKED, 401, b"invalid_key"),
        (b"Content-Encoding: gzip\r\nContent-Length: %d\r\nX: wrong" % (10 << 20), PACKED, 401, b"invalid_key"),
        (b"Content-Length: %d" % (10 << 20), ASKED, 413, b"body_too_large"),
        (b"Content-Length: %d" % (len(ASKED) + 1), ASKED, 408, b"body_timeout"),
        (b"Transfer-Encoding: chunked", b"5\r\n{    \r\nffff\r\n%b\r\n" % (b" " * 0xFFFF), 413, b"body_too_large"),
        (b"Transfer-Encoding: chunked", b"5\r\n{    \r\nnonsense\r\n", 400, b"chunk size"),
        (b"Content-Encoding: br\r\nContent-Length: 3", b"abc", 415, b"unsupported_encoding"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("absolute", [False, True])
def test_a_request_is_answered_alike_wherever_it_arrives(
    headers: bytes, body: bytes, status: int, said: bytes, absolute: bool
) -> None:
    async def run() -> None:
        workers = Workers(2)
        workers.body_seconds = 0.3
        async with workers.serving():
            session = workers.cores[1].sessions.open(SessionSettings(not_mine(WorkerRouter(None, 0, ["", ""]))))  # type: ignore[arg-type]
            key = "wrong" if b"wrong" in headers else session.key
            for url in workers.urls:
                target = f"{url if absolute else ''}/sessions/{session.id}.{key}/v1/chat/completions?a=b".encode()
                request = b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n\r\n%b" % (target, headers, body)
                answer = await raw(url, request)
                assert (int(answer.split()[1]), said in answer) == (status, True), answer

    asyncio.run(run())


@pytest.mark.parametrize(("method", "path"), [("POST", "/pause"), ("PUT", "/weights"), ("POST", "/sessions")])
def test_nothing_is_read_that_comes_without_the_admin_key(method: str, path: str) -> None:
    async def run() -> None:
        workers = Workers(2)
        async with workers.serving():
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"  # and no byte of it
            answer = await raw(workers.urls[0], head.encode())
            assert answer.startswith(b"HTTP/1.1 401 ")

    asyncio.run(run())
