"""What the fake inference servers share: a real port, arithmetic for a model, a count of what is running."""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.process import http_server

EOS = 2
VOCABULARY = 1000


def next_token(ids: list[int], seed: int) -> int:
    """The model: what comes after `ids`."""
    mixed = (len(ids) * 7919 + ids[-1] * 104_729 + sum(ids[-8:]) * 31 + seed * 1_299_709) % 1_000_003
    return 3 + mixed % (VOCABULARY - 3)


def logprob(ids: list[int], token: int) -> float:
    """What the model thinks of `token` after `ids`."""
    return -0.001 - ((token * 31 + len(ids)) % 500) / 100


class Gone(Exception):
    """The client closed the connection."""


class FakeServer:
    """Base of the fakes. `requests` has (path, body) of all it was asked; `running` counts what it is sampling."""

    def __init__(self, *, context_length: int = 512, pace: float = 0.0, api_key: str | None = None) -> None:
        self.context_length = context_length
        self.pace = pace
        """Seconds a token takes."""
        self.api_key = api_key
        """Without it, requests are answered with 401."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.running = 0
        self.gone = 0
        """Requests whose client went away while they were sampled."""
        self.weight_version: str | None = None
        self.going = threading.Event()
        self.going.set()
        self.missing: set[str] = set()
        """Paths to answer with 404."""
        self.url = ""
        self._lock = threading.Lock()

    def handle(self, handler: Handler, path: str, body: dict[str, Any]) -> None:
        """Answer one request."""
        raise NotImplementedError

    def read(self, data: bytes, headers: Any) -> dict[str, Any]:
        """A request's body."""
        return json.loads(data) if data else {}

    def tokens(
        self, handler: Handler, prompt: list[int], params: dict[str, Any]
    ) -> Iterator[tuple[int, float, str | None]]:
        """Sample: (id, logprob, finish) each; stops when the client is gone."""
        with self._lock:
            self.running += 1
        try:
            yield from self._tokens(handler, prompt, params)
        except (Gone, OSError):
            self.gone += 1
            raise
        finally:
            with self._lock:
                self.running -= 1

    def _tokens(
        self, handler: Handler, prompt: list[int], params: dict[str, Any]
    ) -> Iterator[tuple[int, float, str | None]]:
        seed = params.get("seed") or 0 if params.get("temperature", 1.0) else 0
        ids = list(prompt)
        limit = params["max_tokens"]
        for i in range(limit):
            handler.wait(self.pace)
            while not self.going.is_set():
                handler.wait(0.01)
            token = next_token(ids, seed)
            value = logprob(ids, token)
            ids.append(token)
            stopped = token in params["stop"] or (token == EOS and not params.get("ignore_eos"))
            yield token, value, "stop" if stopped else "length" if i == limit - 1 else None
            if stopped:
                return

    @contextmanager
    def serving(self) -> Iterator[Any]:
        fake = self

        class Bound(Handler):
            server_fake = fake

        with http_server(Bound) as self.url:
            try:
                yield self
            finally:
                self.going.set()


class Handler(BaseHTTPRequestHandler):
    """HTTP as uvicorn speaks it: a length for JSON, chunks for a stream."""

    protocol_version = "HTTP/1.1"
    server_fake: FakeServer

    def do_GET(self) -> None:
        self._do({})

    def do_DELETE(self) -> None:
        self._do({})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._do(self.server_fake.read(data, self.headers))

    def _do(self, body: dict[str, Any]) -> None:
        fake = self.server_fake
        fake.requests.append((self.path, body))
        fake.headers.append({name.lower(): value for name, value in self.headers.items()})
        try:
            if fake.api_key and self.headers.get("authorization") != f"Bearer {fake.api_key}":
                self.json({"error": "Unauthorized"}, 401)
            elif self.path.partition("?")[0] in fake.missing:
                self.json({"detail": "Not Found"}, 404)
            else:
                fake.handle(self, self.path.partition("?")[0], body)
        except (Gone, OSError):
            self.close_connection = True

    def wait(self, seconds: float) -> None:
        """Pause, and raise `Gone` if the client is."""
        deadline = time.monotonic() + seconds
        while True:
            readable, _, _ = select.select([self.connection], [], [], max(0.0, min(0.02, deadline - time.monotonic())))
            if readable and not self.connection.recv(1, 2):  # MSG_PEEK
                raise Gone
            if time.monotonic() >= deadline:
                return

    def json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.data(json.dumps(value, ensure_ascii=False).encode(), "application/json", status, headers)

    def data(self, data: bytes, kind: str, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, text in {
            "content-type": kind,
            "content-length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def events(self, events: Iterator[Any]) -> None:
        """Server-sent events, ended by [DONE]; the head waits for the first, like the real servers' do."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            self.chunk(f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())
        self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, *args: object) -> None:
        pass


Serve = Callable[[], Any]
