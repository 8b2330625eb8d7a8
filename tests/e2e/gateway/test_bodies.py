"""Bodies that cost their sender little: the gateway reads none before it knows who asks, and never more than it may.

What it reads takes a small multiple of its size in memory.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.call.core import GatewayLimits
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.gateway import MODEL, gateway, ids
from support.memory import measured

HELLO = b'{"model": "%b", "messages": [{"role": "user", "content": "hi"}]}' % MODEL.encode()
MEGABYTE = 1 << 20
BOMB = gzip.compress(b" " * (64 * MEGABYTE))
GZIP = {"Content-Encoding": "gzip"}


class Opened:
    """Counts what zlib decompresses, whoever asks it to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        make = zlib.decompressobj
        monkeypatch.setattr(zlib, "decompressobj", lambda *args, **more: _Counted(self, make(*args, **more)))


class _Counted:
    def __init__(self, opened: Opened, inner: Any) -> None:
        self._opened, self._inner = opened, inner

    def decompress(self, *args: Any, **more: Any) -> bytes:
        data: bytes = self._inner.decompress(*args, **more)
        self._opened.bytes += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


@contextlib.contextmanager
def serving(**limits: Any) -> Iterator[tuple[Gateway, str]]:
    """A gateway, and where a session of it takes calls."""
    with gateway(ScriptedEngine(lambda request: ids("four")), limits=GatewayLimits(**limits)) as running:
        yield running, running.open_session()["base_url"] + "/chat/completions"


def begin(url: str, sent: bytes, length: int | None = None, **headers: str) -> tuple[int, bytes]:
    """Send the beginning of a request, `length` bytes of body announced; the status and body of what is answered."""
    parts = urlsplit(url)
    announced = {"Host": parts.netloc, "Content-Length": str(length or len(sent))} | headers
    head = f"POST {parts.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in announced.items())
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(head.encode() + b"\r\n" + sent)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65_536):  # until the gateway closes the connection
                answer += piece
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("path", ["/sessions", "/sessions/x.wrong/v1/chat/completions", "/pause", "/nowhere"])
def test_no_byte_of_a_stranger_is_decompressed_or_waited_for(path: str, opened: Opened):
    with serving() as (running, _):
        status, _ = begin(running.url + path, BOMB[:20_000], length=10 * MEGABYTE, **GZIP)
        assert status in (401, 404)
        assert httpx.post(running.url + path, content=BOMB, headers=GZIP).status_code == status
    assert opened.bytes == 0


def test_a_limit_holds_for_decompressed_bytes(opened: Opened):
    with serving(max_body_bytes=2 * MEGABYTE) as (_, url):
        response = httpx.post(url, content=BOMB, headers=GZIP)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        assert opened.bytes <= 4 * MEGABYTE
        packed = gzip.compress(HELLO.ljust(2 * MEGABYTE))
        assert httpx.post(url, content=packed, headers=GZIP).status_code == 200


def test_a_body_that_announces_too_much_is_not_waited_for():
    with serving(max_body_bytes=1000) as (_, url):
        status, said = begin(url, b" " * 20_000, length=10 * MEGABYTE)
        assert (status, b"body_too_large" in said) == (413, True)


def test_half_a_body_is_given_up():
    with serving(body_seconds=0.2) as (_, url):
        status, said = begin(url, HELLO[:-5], length=len(HELLO))
        assert (status, b"body_timeout" in said) == (408, True)
        status, said = begin(url, gzip.compress(HELLO)[:-5], length=1000, **GZIP)
        assert (status, b"body_timeout" in said) == (408, True)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "deflate", "raw", "identity", ""])
def test_encodings_that_are_read(encoding: str):
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = {"deflate": zlib.compress(HELLO), "raw": raw.compress(HELLO) + raw.flush(), "identity": HELLO, "": HELLO}
    body, name = packed.get(encoding, gzip.compress(HELLO)), "deflate" if encoding == "raw" else encoding
    with serving() as (_, url):
        assert httpx.post(url, content=body, headers={"Content-Encoding": name}).status_code == 200
        pieces = (body[start : start + 7] for start in range(0, len(body), 7))
        assert httpx.post(url, content=pieces, headers={"Content-Encoding": name}).status_code == 200


@pytest.mark.parametrize(
    ("body", "encoding", "status", "said"),
    [
        (gzip.compress(HELLO)[:-9], "gzip", 400, "has no end"),
        (gzip.compress(HELLO) + b"more", "gzip", 400, "bytes follow the end"),
        (b"plain", "gzip", 400, "can't be read"),
        (HELLO, "br", 415, "'br'"),
    ],
)
def test_encodings_that_are_refused(body: bytes, encoding: str, status: int, said: str):
    with serving() as (_, url):
        response = httpx.post(url, content=body, headers={"Content-Encoding": encoding})
        assert (response.status_code, said in response.json()["error"]["message"]) == (status, True)


def test_a_refused_request_leaves_its_connection_to_the_next():
    with serving() as (running, url), httpx.Client() as client:
        assert client.post(f"{running.url}/sessions", content=b" " * 60_000).status_code == 401
        sent = [client.post(url, content=HELLO).extensions["network_stream"].get_extra_info("client_addr")]
        sent.append(client.post(f"{running.url}/pause", content=b"{}").extensions["network_stream"])
        assert sent[1].get_extra_info("client_addr") == sent[0]


# Memory


@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages", "messages/count_tokens"])
def test_a_prompt_far_beyond_the_context_takes_little_memory(path: str):
    text = "a" * (16 * MEGABYTE)  # a tokenizer takes up to 30 bytes for each of these
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}], "prompt": text}
    with gateway(ScriptedEngine([], context_length=64)) as running:
        url, raw = f"{running.open_session()['base_url']}/{path}", json.dumps(body).encode()
        del body, text
        with measured() as peak:
            response = httpx.post(url, content=raw, timeout=60)
        assert peak.bytes < 10 * len(raw)
        assert (response.status_code, "262144 tokens or more" in response.text) == (400, True)


def test_messages_are_bounded_together():
    body = {"messages": [{"role": "user", "content": "a" * 2000}] * 500}
    with gateway(ScriptedEngine([], context_length=64)) as running:
        response = httpx.post(f"{running.open_session()['base_url']}/chat/completions", json=body, timeout=60)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "262144 tokens or more" in response.text
