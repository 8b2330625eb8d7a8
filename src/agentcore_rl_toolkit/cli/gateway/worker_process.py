"""The other workers of `gateway serve --workers`, as processes that the first worker starts and restarts.

A worker's standard input is a socket to the first worker. It writes a byte there once it listens, and ends when the
first worker closes it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time

from ...errors import ConfigError
from ..flags import say

_START_SECONDS = 10.0
"""How long to restart a worker that never listened: one of a killed gateway may still hold the port."""


def announce_listening() -> None:
    """Tell the first worker that this one listens."""
    os.write(sys.stdin.fileno(), b"!")


class WorkerProcess:
    """A worker that is started again when it dies; its log restores its sessions."""

    def __init__(self, number: int, port: int) -> None:
        self._number, self._port = number, port
        self.listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the worker listens; fails with a `ConfigError` if it never does."""
        self._stdin: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        self._supervisor.cancel()
        await asyncio.wait({self._supervisor})
        if self._stdin is not None:
            self._stdin.close()
        if self._process is not None:
            await self._process.wait()

    async def _supervise(self) -> None:
        command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", *sys.argv[1:], "--worker", str(self._number)]
        started = time.monotonic()
        while True:
            try:
                code = await self._run_once(command)
            except Exception as error:  # out of processes or descriptors
                code = f"{type(error).__name__}: {error}"
            if not self.listening.done() and time.monotonic() - started > _START_SECONDS:
                text = f"worker {self._number} ended with {code} before it listened on port {self._port}"
                self.listening.set_exception(ConfigError(text, hint="read its output above"))
                return
            say(f"worker {self._number} ended with {code}; starting it again")
            await asyncio.sleep(1)

    async def _run_once(self, command: list[str]) -> int | str:
        """Start the process, and wait until it ends."""
        self._stdin, theirs = socket.socketpair()
        self._stdin.setblocking(False)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(*command, stdin=theirs.fileno())
            if await asyncio.get_running_loop().sock_recv(self._stdin, 1) and not self.listening.done():
                self.listening.set_result(None)
            return await self._process.wait()
        finally:
            self._stdin.close()
