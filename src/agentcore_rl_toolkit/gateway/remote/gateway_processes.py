"""A gateway in processes beside this one, which samples from this process's engine; it starts and ends with its block.

    with GatewayProcesses(engine, tokenizer, workers=2) as gateway:
        session = gateway.open_session(input_id="row-1")

HTTP, tokenizing and recording run in the workers; this process only samples. It keeps the workers' ports open, so that
calls to a worker that was killed wait until its successor, with the sessions of its log, accepts them. Workers end with
this process, even if it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ...common.http_guard import reachable_host
from ...engine.base import Engine
from ..base import ADMIN_KEY
from ..workers.worker_process import WorkerProcess, bind_ports
from .gateway_client import GatewayClient


class GatewayProcesses(GatewayClient):
    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        workers: int,
        host: str = "127.0.0.1",
        port: int = 0,
        public_url: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        patience: float = 300.0,
        images: bool = True,
        routes: bool = False,
    ) -> None:
        """`tokenizer` is one from Transformers, or a folder or hub id. With a `port`, workers listen on it and those
        after it. `folder` keeps their logs while they run (default: the system's temporary one).
        """
        self._tokenizer, self._host, self._public_url = tokenizer, host, public_url
        self._folder = folder
        self._sockets = bind_ports(host, port, workers)
        self._urls = [f"http://{reachable_host(host)}:{one.getsockname()[1]}" for one in self._sockets]
        self._key = secrets.token_urlsafe(24)
        self._files = contextlib.ExitStack()
        self._workers: list[WorkerProcess] = []
        super().__init__(
            self._urls[0], admin_key=self._key, engine=engine, patience=patience, images=images, routes=routes
        )
        self._flags = [] if images else ["--no-images"]
        self._flags += ["--routes"] if routes else []
        self._flags += ["--public-url", public_url] if public_url else []

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that run."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def _start(self) -> None:
        command = await asyncio.to_thread(self._command)
        environment = os.environ | {ADMIN_KEY: self._key}
        for number, one in enumerate(self._sockets):
            line = [*command, "--worker", str(number), "--socket", str(one.fileno())]
            name = f"the gateway's worker {number}"
            self._workers.append(
                WorkerProcess(name, line, port=one.getsockname()[1], environment=environment, keeps=[one.fileno()])
            )
        await asyncio.gather(*(worker.listening for worker in self._workers))
        await super()._start()

    async def _stop(self) -> None:
        await super()._stop()
        await asyncio.gather(*(worker.close() for worker in self._workers))
        for one in self._sockets:
            one.close()
        await asyncio.to_thread(self._files.close)

    def _command(self) -> list[str]:
        if self._folder is not None:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix="gateway-", dir=self._folder))
        self._files.callback(shutil.rmtree, home, ignore_errors=True)
        command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "gateway", "serve", "--engine", "trainer"]
        command += [*_save_tokenizer(self._tokenizer, home / "tokenizer"), "--log", str(home / "log")]
        command += ["--host", self._host, "--workers", str(len(self._sockets)), *self._flags]
        return [*command, *(part for url in self._urls for part in ("--worker-url", url))]


def _save_tokenizer(tokenizer: Any, folder: Path) -> list[str]:
    """A tokenizer as `gateway serve` takes it: as this process has it, with its own chat template and name."""
    full = getattr(tokenizer, "full", tokenizer)
    if isinstance(full, (str, os.PathLike)):
        return ["--tokenizer", str(full)]
    full.save_pretrained(folder)
    return ["--tokenizer", str(folder), "--tokenizer-name", str(full.name_or_path)]
