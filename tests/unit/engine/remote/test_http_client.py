"""The HTTP client under the remote engines: bytes cut anywhere, connections kept, closed and tried again."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.remote.framing import EventParser, ResponseBody
from agentcore_rl_toolkit.engine.remote.http_client import Connection, HttpClient, error_message, retry_seconds
from agentcore_rl_toolkit.errors import ConfigError, EngineError
from support.loop import LoopThread, loop_thread
from support.process import free_port
from support.raw_server import CLOSE, END, RESET, STREAM, RawServer, chunk, http


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


async def fetch(client: HttpClient, *body: bytes) -> bytes:
    with await client.post("/x", *(body or (b"{}",))) as answer:
        return await answer.read()


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    at = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True) if a < b]


lines = st.lists(
    st.one_of(
        st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=20).map(
            lambda text: ("data", text.strip(" \t\x0b\x0c"))
        ),
        st.sampled_from([("other", ": keep-alive"), ("other", "event: x"), ("other", ""), ("other", "id")]),
    ),
    max_size=20,
)


@given(lines, st.booleans(), st.booleans(), st.data())
def test_events_are_the_same_however_they_are_cut(
    said: list[tuple[str, str]], spaced: bool, crlf: bool, data: st.DataObject
) -> None:
    start, end = ("data: " if spaced else "data:"), ("\r\n" if crlf else "\n")
    raw = "".join((start + text if kind == "data" else text) + end for kind, text in said).encode()
    events = EventParser()
    got = [event for piece in data.draw(cuts(raw)) for event in events.feed(piece)]
    assert got == [text.encode() for kind, text in said if kind == "data"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_a_newline_ends_a_line(separator: str) -> None:
    raw = f'data: {{"text":"a{separator}b"}}\n\n'.encode()
    assert EventParser().feed(raw) == [raw[6:-2]]


def test_a_line_without_its_end_is_not_an_event_yet() -> None:
    events = EventParser()
    assert events.feed(b'data: {"a":1}') == []
    assert events.feed(b"\n") == [b'{"a":1}']


bodies = st.binary(max_size=300)


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), bodies, st.booleans(), st.data())
def test_chunks_are_the_same_however_they_are_cut(
    parts: list[bytes], after: bytes, trailer: bool, data: st.DataObject
) -> None:
    raw = b"".join(b"%X;ext=1\r\n%b\r\n" % (len(part), part) for part in parts)
    raw += b"0\r\n" + (b"x-sum: 1\r\n" if trailer else b"") + b"\r\n"
    body = ResponseBody({b"transfer-encoding": b"chunked"})
    buffer, got = bytearray(), b""
    for piece in data.draw(cuts(raw)):
        assert not body.done
        buffer += piece
        got += body.take_bytes(buffer)
    assert body.done
    assert got == b"".join(parts)
    buffer += after
    assert bytes(buffer) == after


payloads = st.sampled_from(
    [
        b'data: {"a":1}',
        b"data: [DONE]",
        b"data:  x ",
        b"data:y",
        b": ping",
        b"event: e",
        b"data: a\ndata: b",
        b"data: ",
        b"",
    ]
)
ends = st.sampled_from([b"\n\n", b"\n\n", b"\n\n", b"\n", b"\r\n\r\n", b"", b"\n\n\r\n"])


@given(st.lists(st.tuples(payloads, ends), max_size=8), st.sampled_from([b"%x", b"%X", b"%X;ext=1", b"0%x"]), st.data())
def test_events_are_the_same_however_they_are_chunked_and_cut(
    said: list[tuple[bytes, bytes]], size: bytes, data: st.DataObject
) -> None:
    plain = b"".join(payload + end for payload, end in said)
    chunks = data.draw(st.sampled_from([[payload + end for payload, end in said], data.draw(cuts(plain))]))
    raw = b"".join(size % len(part) + b"\r\n" + part + b"\r\n" for part in chunks if part) + b"0\r\n\r\n"
    body, buffer, got = ResponseBody({b"transfer-encoding": b"chunked"}), bytearray(), []
    for piece in data.draw(cuts(raw)):
        buffer += piece
        got += body.take_events(buffer) + body.take_events(buffer)
    assert got == EventParser().feed(plain)
    assert body.done
    assert not buffer


EVENT = b"a\r\ndata: {}\n\n\r\n"


@pytest.mark.parametrize(
    ("pieces", "events"),
    [
        ([b"c\r\ndata: {}\n\n\r\n\r\n0\r\n\r\n"], [b"{}"]),
        ([b"13\r\ndata: {}\ndata: {}\n\n\r\n0\r\n\r\n"], [b"{}", b"{}"]),
        ([b"c\r\ndata:  {} \n\n\r\n0\r\n\r\n"], [b"{}"]),
        ([b"10\r\n\n", EVENT + b"\r\n0\r\n\r\n"], [b"{}"]),
        ([b"0\r\n", EVENT + b"\r\n"], []),
        ([b"7\r\ndata: a\r\n", EVENT + b"0\r\n\r\n"], [b"adata: {}"]),
        ([EVENT + b"8\r\n: ping\n\n\r\n" + EVENT + b"0\r\n\r\n"], [b"{}", b"{}"]),
    ],
    ids=[
        "its end in an event", "two in a chunk", "space around it", "a chunk in a chunk", "in a trailer", "in a line",
        "a comment between",
    ],
)  # fmt: skip
def test_what_looks_like_a_chunk_with_an_event_need_not_be_one(pieces: list[bytes], events: list[bytes]) -> None:
    body, buffer, got = ResponseBody({b"transfer-encoding": b"chunked"}), bytearray(), []
    for piece in pieces:
        buffer += piece
        got += body.take_events(buffer) + body.take_events(buffer)
    assert got == events
    assert (body.done, bytes(buffer)) == (True, b"")


def test_events_of_a_body_that_is_not_chunked() -> None:
    for headers in ({b"content-length": b"22"}, {}):
        buffer, body = bytearray(b"data: {}\n\ndata: {}\n\n\r\n"[: 22 if headers else 20]), ResponseBody(headers)
        assert body.take_events(buffer) == [b"{}", b"{}"]
        assert (body.done, bytes(buffer)) == (bool(headers), b"")
    body = ResponseBody({b"content-length": b"%d" % len(EVENT)})
    assert body.take_events(bytearray(EVENT)) == [b"{}"]
    assert body.done


@given(bodies, bodies, st.data())
def test_a_length_ends_the_body(said: bytes, after: bytes, data: st.DataObject) -> None:
    body = ResponseBody({b"content-length": str(len(said)).encode()})
    buffer, got = bytearray(), b""
    for piece in data.draw(cuts(said + after)):
        buffer += piece
        got += body.take_bytes(buffer) if not body.done else b""
    assert body.done
    assert got == said
    assert bytes(buffer) == after


@pytest.mark.parametrize(
    "steps",
    [
        [http(b"hello")],
        [bytes([b]) for b in http(b"hello")],
        [STREAM + chunk(b"he") + chunk(b"llo") + END],
        [STREAM, 0.01, chunk(b"hel")[:4], 0.01, chunk(b"hel")[4:] + chunk(b"lo"), 0.01, END],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + http(b"hello")],
        [b"HTTP/1.0 200 OK\r\n\r\nhel", 0.01, b"lo", CLOSE],
    ],
)
def test_an_answer_is_read_whole(loop: LoopThread, steps: list[bytes | float | str]) -> None:
    with RawServer(steps).serving() as server:
        client = HttpClient(server.url)
        assert loop.run(fetch(client)) == b"hello"
        loop.run(client.close())


def test_a_connection_is_used_again(loop: LoopThread) -> None:
    with RawServer([STREAM + chunk(b"a") + END], [http(b"b")]).serving() as server:
        client = HttpClient(server.url)
        assert [loop.run(fetch(client)) for _ in range(5)] == [b"a", b"b", b"b", b"b", b"b"]
        assert server.connections == 1
        loop.run(client.close())


@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_a_connection_the_server_closed_meanwhile_is_replaced(loop: LoopThread, end: str) -> None:
    """It reads the second request and closes without a byte, like a server whose idle time was just over."""
    with RawServer([http(b"a")], [end], [http(b"b")]).serving() as server:
        client = HttpClient(server.url)
        assert loop.run(fetch(client, b"1")) == b"a"
        assert loop.run(fetch(client, b"2")) == b"b"
        assert [request[-1:] for request in server.requests] == [b"1", b"2", b"2"]
        loop.run(client.close())


class Closing(asyncio.Transport):
    """As asyncio's own from Python 3.12 on: it has nothing left to write with, and has not said so yet."""

    def is_closing(self) -> bool:
        return True

    def writelines(self, list_of_data: object) -> None:
        raise TypeError("'NoneType' object is not callable")


def test_nothing_is_written_to_a_connection_that_is_closing(loop: LoopThread) -> None:
    async def write() -> None:
        connection = Connection()
        connection.connection_made(Closing())
        connection.write([b"a", b"b"])

    loop.run(write())


def test_unrequested_bytes_are_not_taken_for_a_response(loop: LoopThread) -> None:
    with RawServer([http(b"a") + http(b"stray")], [http(b"b")]).serving() as server:
        client = HttpClient(server.url)
        assert [loop.run(fetch(client)) for _ in range(2)] == [b"a", b"b"]
        loop.run(client.close())


def test_it_is_tried_again_only_once(loop: LoopThread) -> None:
    with RawServer([http(b"a")], [CLOSE]).serving() as server:
        client = HttpClient(server.url)
        loop.run(fetch(client))
        with pytest.raises(EngineError, match="without an answer") as caught:
            loop.run(fetch(client))
        assert not caught.value.sampled_any
        assert len(server.requests) == 3
        loop.run(client.close())


def test_a_fresh_connection_is_not_tried_again(loop: LoopThread) -> None:
    with RawServer([CLOSE]).serving() as server:
        client = HttpClient(server.url)
        with pytest.raises(EngineError, match="without an answer"):
            loop.run(fetch(client))
        assert len(server.requests) == 1
        loop.run(client.close())


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal"])
def test_nothing_is_sent_again_once_an_answer_began(loop: LoopThread, begun: bytes) -> None:
    with RawServer([http(b"a")], [begun, CLOSE]).serving() as server:
        client = HttpClient(server.url)
        loop.run(fetch(client))
        with pytest.raises(EngineError, match=r"middle of an answer|not HTTP") as caught:
            loop.run(fetch(client))
        assert caught.value.sampled_any
        assert len(server.requests) == 2
        loop.run(client.close())


@pytest.mark.parametrize("early", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal"])
def test_silence_is_a_timeout(loop: LoopThread, early: bytes) -> None:
    with RawServer([early, 20.0]).serving() as server:
        client = HttpClient(server.url, timeout=0.2)
        with pytest.raises(EngineError) as caught:
            loop.run(fetch(client))
        assert caught.value.status == 504
        assert caught.value.sampled_any
        loop.run(client.close())


def test_a_server_that_cannot_be_reached_is_an_engine_error(loop: LoopThread) -> None:
    client = HttpClient(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(EngineError, match="could not be reached") as caught:
        loop.run(fetch(client))
    assert caught.value.status == 503
    assert not caught.value.sampled_any
    loop.run(client.close())


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"x" * 100_000,
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello",
    ],
)
def test_a_response_that_is_not_http_is_an_engine_error(loop: LoopThread, said: bytes) -> None:
    with RawServer([said, CLOSE]).serving() as server:
        client = HttpClient(server.url)
        with pytest.raises(EngineError, match=r"not HTTP|broken chunks"):
            loop.run(fetch(client))
        loop.run(client.close())


@pytest.mark.parametrize(
    ("status", "seen"), [(400, 400), (404, 404), (422, 400), (429, 429), (500, 502), (503, 503), (401, 502), (302, 502)]
)
def test_the_status_an_agent_should_see(loop: LoopThread, status: int, seen: int) -> None:
    answer = http(b'{"error":{"message":"too long by 7"}}', f"{status} No", "retry-after: 2.5\r\n")
    with RawServer([answer]).serving() as server:
        client = HttpClient(server.url)
        with pytest.raises(EngineError, match="too long by 7") as caught:
            loop.run(fetch(client))
        assert caught.value.status == seen
        assert caught.value.retry_after == 2.5
        assert not caught.value.sampled_any
        with pytest.raises(EngineError):
            loop.run(fetch(client))
        assert server.connections == 1  # an error costs no connection
        loop.run(client.close())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"m","code":400}}', "m"),
        (b'{"error":"m"}', "m"),
        (b'{"object":"error","message":"m"}', "m"),
        (b'{"detail":"m"}', "m"),
        (b'{"detail":[{"msg":"m"}]}', "[{'msg': 'm'}]"),
        (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", "(nothing)"),
        (b'{"other":1}', "{'other': 1}"),
    ],
)
def test_what_an_error_says_in_any_shape(body: bytes, said: str) -> None:
    assert error_message(body) == said


def test_retry_after() -> None:
    assert retry_seconds(b"3") == 3.0
    assert retry_seconds(b"-1") == 0.0
    assert retry_seconds(b"Wed, 21 Oct 2015 07:28:00 GMT") is None
    assert retry_seconds(None) is None


def test_leaving_early_closes_the_connection(loop: LoopThread) -> None:
    with RawServer([STREAM + chunk(b"a"), 20.0]).serving() as server:
        client = HttpClient(server.url)

        async def leave() -> None:
            with await client.post("/x") as answer:
                assert await answer.read_some() == b"a"
            await asyncio.sleep(0)

        loop.run(leave())
        assert client.idle == []
        loop.run(client.close())


def test_a_reader_that_lags_makes_the_server_wait(loop: LoopThread) -> None:
    size = 30 << 20
    with RawServer([http(b"x" * size)]).serving() as server:
        client = HttpClient(server.url)

        async def lag() -> tuple[int, int]:
            with await client.post("/x") as answer:
                await asyncio.sleep(0.5)
                waiting = len(answer.connection.buffer)
                return waiting, len(await answer.read())

        waiting, got = loop.run(lag())
        assert waiting < 8 << 20
        assert got == size
        loop.run(client.close())


def test_the_request_on_the_wire(loop: LoopThread) -> None:
    with RawServer([http(b"a")]).serving() as server:
        client = HttpClient(server.url + "/base/", api_key="k\n")
        loop.run(fetch(client, b'{"a":1}'))
        loop.run(fetch(client, b'{"a"', b":", b"1}"))
        loop.run(client.get("/v1/models"))
        loop.run(client.close())
    host = server.url.removeprefix("http://").encode()
    common = b" HTTP/1.1\r\nhost: " + host + b"\r\nauthorization: Bearer k\r\n"
    json = b'content-type: application/json\r\ncontent-length: 7\r\n\r\n{"a":1}'
    assert server.requests == [
        b"POST /base/x" + common + json,
        b"POST /base/x" + common + json,
        b"GET /base/v1/models" + common + b"content-length: 0\r\n\r\n",
    ]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://"])
def test_a_url_has_to_be_one(url: str) -> None:
    with pytest.raises(ConfigError, match="hint:"):
        HttpClient(url)


def test_a_password_has_no_place_in_it() -> None:
    with pytest.raises(ConfigError) as caught:
        HttpClient("http://me:secret@localhost:8000")
    assert "secret" not in str(caught.value)


def test_https(loop: LoopThread, tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip

    async def exchange() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(http(b"secret"))
            await writer.drain()
            writer.close()

        theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        theirs.load_cert_chain(cert, key)
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=theirs) as server:
            url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
            client = HttpClient(url, ssl=ssl.create_default_context(cafile=str(cert)))
            got = await client.get("/x")
            await client.close()
            stranger = HttpClient(url)
            with pytest.raises(EngineError, match="could not be reached"):
                await stranger.get("/x")
            return got

    assert loop.run(exchange()) == b"secret"
