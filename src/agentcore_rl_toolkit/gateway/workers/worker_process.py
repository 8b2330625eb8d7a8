"""A worker of a gateway as a process that is started again when it dies; its log restores its sessions.

Its standard input is a socket to the process that started it. It writes a byte there once it listens, and ends when the
other end is closed, even if that process was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence

from ...errors import ConfigError

logger = logging.getLogger(__name__)

_START_SECONDS = 10.0
"""How long to restart a worker that never listened: one of a killed gateway may still hold the port."""


def announce_listening() -> None:
    """Tell the process that started this worker that it listens."""
    os.write(sys.stdin.fileno(), b"!")


class WorkerProcess:
    """Runs a worker's `command`, over and over, on the running loop."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        port: int,
        environment: Mapping[str, str] | None = None,
        keeps: Sequence[int] = (),
    ) -> None:
        """`keeps` are descriptors that the process inherits."""
        self._name, self._command, self._port = name, command, port
        self._environment, self._keeps = environment, keeps
        self.listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the worker listens; fails with a `ConfigError` if it never does."""
        self._listened = False
        """Whether it did when it ran last."""
        self._stdin: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor = asyncio.create_task(self._supervise())

    @property
    def pid(self) -> int | None:
        """The process's id; None while it is not running."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def close(self) -> None:
        self._supervisor.cancel()
        await asyncio.wait({self._supervisor})
        if self._stdin is not None:
            self._stdin.close()
        if self._process is not None:
            await self._process.wait()

    async def _supervise(self) -> None:
        started = time.monotonic()
        while True:
            try:
                code = await self._run_once()
            except Exception as error:  # out of processes or descriptors
                code = f"{type(error).__name__}: {error}"
            refused = isinstance(code, int) and code > 0 and bool(self._keeps)  # not killed, and no port to wait for
            if not self.listening.done() and (refused or time.monotonic() - started > _START_SECONDS):
                text = f"{self._name} ended with {code} before it listened on port {self._port}"
                self.listening.set_exception(ConfigError(text, hint="read its output above"))
                return
            logger.warning("%s ended with %s; starting it again", self._name, code)
            if not self._listened:
                await asyncio.sleep(1)

    async def _run_once(self) -> int | str:
        """Start the process, and wait until it ends."""
        self._listened = False
        self._stdin, theirs = socket.socketpair()
        self._stdin.setblocking(False)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the process that started it, which still needs it
                    env=None if self._environment is None else dict(self._environment),
                    pass_fds=tuple(self._keeps),
                )
            self._listened = bool(await asyncio.get_running_loop().sock_recv(self._stdin, 1))
            if self._listened and not self.listening.done():
                self.listening.set_result(None)
            return await self._process.wait()
        finally:
            self._stdin.close()


def bind_ports(host: str, port: int, count: int) -> list[socket.socket]:
    """Listen on successive ports, one for each worker: calls wait there while it is started again."""
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []
        for number in range(count):
            try:
                found = socket.getaddrinfo(host, port + number if port else 0, type=socket.SOCK_STREAM)[0]
                one = stack.enter_context(socket.socket(found[0], found[1]))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(found[4])
                one.listen(4096)
            except OSError as error:
                message = f"can't listen on {host}:{port + number if port else 0}: {error}"
                raise ConfigError(message, hint="choose another port") from error
            opened.append(one)
        stack.pop_all()
    return opened
