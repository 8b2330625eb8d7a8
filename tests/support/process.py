"""Starting a server process on a free port, waiting until it answers, and ending it."""

from __future__ import annotations

import http.client
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def free_port() -> int:
    """One below those of outgoing connections, which no other test gets for a minute.

    It is left in TIME_WAIT: a server may take it, as servers set SO_REUSEADDR, and this function may not.
    """
    while True:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", 10_000 + secrets.randbelow(20_000)))
            except OSError:
                continue
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.listen(1)
            with socket.create_connection(s.getsockname()):
                s.accept()[0].close()  # this side first, so that it is the one that waits
            return int(s.getsockname()[1])


def clean_env(**extra: str) -> dict[str, str]:
    """This process's environment without any AWS or toolkit settings, plus `extra`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "AGENTCORE_RL_", "BASE_URL", "MODEL_ID"))}
    return kept | extra


def without_torch() -> dict[str, str]:
    """Environment of a Python process that finds no PyTorch, and so starts in half the time."""
    return {"PYTHONPATH": str(Path(__file__).with_name("no_torch"))}


@contextmanager
def server(
    command: Sequence[str],
    *,
    port: int,
    log: Path,
    env: Mapping[str, str] | None = None,
    ready: str = "/",
    seconds: float = 60,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` until the block ends; enter it when `ready` on `port` answers HTTP at all."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        _wait(process, port, ready, log, time.monotonic() + seconds)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, ready: str, log: Path, deadline: float) -> None:
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", ready)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
        else:
            return
        finally:
            connection.close()
    raise RuntimeError(f"{process.args} did not become ready on port {port}:\n{log.read_text()[-3000:]}")


@contextmanager
def http_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server of this process on a free port, a thread for each connection; gives its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
