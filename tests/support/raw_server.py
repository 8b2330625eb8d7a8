"""A server that sends exactly the bytes it is told to, cut as it is told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

CLOSE = "close"
RESET = "reset"

Step = bytes | float | str
"""Bytes to send, seconds to wait, or a way to end the connection."""
Script = Sequence[Step] | Callable[[int, bytes], Sequence[Step]]


class RawServer:
    """Answers the nth request it gets by the nth script, the last one again and again."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""
        self._lock = threading.Lock()

    @contextmanager
    def serving(self) -> Iterator[RawServer]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            listener.settimeout(0.05)
            stop = threading.Event()
            threads: list[threading.Thread] = []

            def accept() -> None:
                while not stop.is_set():
                    with suppress(TimeoutError):
                        connection, _ = listener.accept()
                        self.connections += 1
                        threads.append(threading.Thread(target=self._serve, args=(connection, stop), daemon=True))
                        threads[-1].start()

            acceptor = threading.Thread(target=accept, daemon=True)
            acceptor.start()
            try:
                yield self
            finally:
                stop.set()
                for thread in (acceptor, *threads):
                    thread.join(10)

    def _serve(self, connection: socket.socket, stop: threading.Event) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(0.05)
            while (request := self._receive(connection, stop)) is not None:
                with self._lock:
                    number = len(self.requests)
                    self.requests.append(request)
                script = self.scripts[min(number, len(self.scripts) - 1)]
                for step in script(number, request) if callable(script) else script:
                    if isinstance(step, bytes):
                        connection.settimeout(10)
                        connection.sendall(step)
                        connection.settimeout(0.05)
                    elif isinstance(step, str):
                        if step == RESET:
                            linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                        return
                    else:
                        deadline = time.monotonic() + step
                        while time.monotonic() < deadline and not stop.is_set():
                            time.sleep(0.005)

    def _receive(self, connection: socket.socket, stop: threading.Event) -> bytes | None:
        """One request with its body; None at the end of the connection."""
        data = b""
        while not stop.is_set():
            head, end, body = data.partition(b"\r\n\r\n")
            if end:
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
                )
                if len(body) >= length:
                    return data
            with suppress(TimeoutError):
                more = connection.recv(65_536)
                if not more:
                    return None
                data += more
        return None


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """A whole answer with its length."""
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
