"""An agent as the runtime knows it: where its code is, and the template processes that its sessions come from.

Service side of `template.py`. A changed source file makes a new template; sessions of the old one live on, and it goes
when the last of them has ended. Which sessions are prepared, and when, is `pool.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import RuntimeFault
from ..agent_code import find_agent, fingerprint
from .channel import Channel
from .policy import SessionPolicy
from .root import read_only_paths
from .sandbox import SESSION_UID, RootSpec

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_KEPT_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE")
# Hundreds of sessions share the cores; a pool of threads each would only get in the way, and can't be forked.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclasses.dataclass(frozen=True)
class AgentSource:
    """Where an agent's code is, and what its sessions are given."""

    name: str
    folder: str
    entry: str
    policy: SessionPolicy = dataclasses.field(default_factory=SessionPolicy)
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    tps_limit: float | None = None

    @classmethod
    def parse(cls, target: str | os.PathLike[str], name: str | None = None, **settings: Any) -> AgentSource:
        """From `path/to/rl_app.py` or `module:app`; the name is the folder's or the module's, made fit for an ARN."""
        return cls(*find_agent(target, name), **settings)

    @property
    def arn(self) -> str:
        """The agent's ARN on this machine."""
        return f"arn:aws:bedrock-agentcore:local:000000000000:runtime/{self.name}"

    def fingerprint(self) -> tuple[tuple[str, int, int], ...]:
        """Changes when a file of the agent does."""
        return fingerprint(self.folder)

    def environment(self) -> dict[str, str]:
        """What a session's process gets of the host's environment: nothing secret."""
        kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        return kept | _ONE_THREAD | {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"} | self.env


class Template:
    """One template process."""

    def __init__(self, source: AgentSource, *, protections: list[str], state: Path, single: bool) -> None:
        self.source, self.single = source, single
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.on_exited: dict[int, Callable[[int], None]] = {}
        self.on_closed: Callable[[Template], object] = lambda _: None
        self.closed: asyncio.Task[None] | None = None
        self.retired = False
        self._protections, self._state = protections, state
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    @property
    def log(self) -> Path:
        """What the agent printed while it was imported."""
        return self._state / f"template-{id(self):x}.log"

    def launch(self) -> None:
        """Start the process; `ready` says how it went."""
        root = self._state / f"root-{id(self):x}"
        root.mkdir()
        channel, theirs = Channel.pair()
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        privileged = os.geteuid() == 0
        spec = {
            "root": dataclasses.asdict(
                RootSpec(
                    root=str(root),
                    agent_folder=self.source.folder,
                    protections=self._protections,
                    read_only=read_only_paths(),
                    disk_mb=self.source.policy.disk_mb,
                    memory_mb=self.source.policy.memory_mb,
                    uid=SESSION_UID if privileged else os.geteuid(),
                    gid=SESSION_UID if privileged else os.getegid(),
                )
            ),
            "entry": self.source.entry,
            "single": self.single,
            "control": theirs.fileno(),
            "lifeline": lifeline,
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.template", json.dumps(spec)],
                env=self.source.environment(),
                pass_fds=(theirs.fileno(), lifeline),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        theirs.close()
        os.close(lifeline)
        self._channel = channel
        loop = asyncio.get_running_loop()
        loop.add_reader(channel.fileno(), self._received)
        loop.call_later(self.source.policy.start_timeout, self._too_late)

    def prepare(self, n: int, folder: str, descriptors: list[int], on_exited: Callable[[int], None]) -> None:
        """Have a session forked off (in single mode: have this process become it)."""
        self.on_exited[n] = on_exited
        try:
            assert self._channel is not None
            self._channel.send({"op": "prepare", "n": n, "folder": folder}, descriptors)
        except (OSError, AssertionError):
            self.on_exited.pop(n, None)
            raise RuntimeFault(f"the template of {self.source.name} is gone", code="RuntimeClientError") from None

    def signal(self, n: int, number: int) -> None:
        """Send a signal to a session."""
        if self.single and self._process is not None and number == 9:
            self.close()
        elif self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send({"op": "signal", "n": n, "signal": number})

    def retire(self) -> None:
        """Start no more sessions; end when the last one has."""
        self.retired = True
        self._close_if_done()

    def close(self) -> None:
        """End now, with all sessions; `closed` completes when the processes are gone."""
        if self._channel is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._channel.fileno())
        self._channel.close()
        self._channel = None
        os.close(self._lifeline)
        self.closed = loop.create_task(self._bury())

    async def _bury(self) -> None:
        assert self._process is not None
        if "processes" not in self._protections:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
        status = await asyncio.to_thread(self._process.wait)
        for n in list(self.on_exited):
            self.on_exited.pop(n)(status if self.single else -9)
        with contextlib.suppress(OSError):
            (self._state / f"root-{id(self):x}").rmdir()
        self.log.unlink(missing_ok=True)
        self.on_closed(self)

    def _received(self) -> None:
        assert self._channel is not None
        try:
            message, _ = self._channel.receive()
        except BlockingIOError:
            return
        if message is None:
            self._gone()
        elif message["op"] == "exited":
            on_exited = self.on_exited.pop(message["n"], None)
            if on_exited is not None:
                on_exited(message["status"])
            self._close_if_done()
        elif not self.ready.done():
            self.ready.set_result(message)

    def _gone(self) -> None:
        if not self.ready.done():
            text = self.log.read_text(errors="replace")[-4000:]
            self.ready.set_result({"op": "failed", "traceback": text or "the process ended without a word"})
        self.close()

    def _too_late(self) -> None:
        if not self.ready.done():
            seconds = self.source.policy.start_timeout
            self.ready.set_result({"op": "failed", "traceback": f"the agent was not imported within {seconds:g} s"})
            self.close()

    def _close_if_done(self) -> None:
        if self.retired and not self.on_exited:
            self.close()


class TemplateKeeper:
    """Keeps an up-to-date template for one agent, or processes that have imported it if it can't be forked."""

    def __init__(self, source: AgentSource, *, protections: list[str], state: Path) -> None:
        self.source = source
        self.generation = 0
        """Goes up whenever the agent's files have changed."""
        self._protections, self._state = protections, state
        self._current: Template | None = None
        self._fingerprint: tuple[tuple[str, int, int], ...] = ()
        self._looked = 0.0
        self._all: set[Template] = set()

    async def template(self) -> Template:
        """A template to prepare one session from; a fault with the agent's own traceback if there can't be one."""
        self.look()
        current = self._current = self._current or self._launch(single=False)
        message = await asyncio.shield(current.ready)
        if message["op"] == "failed":
            if self._current is current:
                self._current = None  # the next one tries again
            raise self._fault(message)
        if message["forkable"]:
            return current
        if not current.retired:
            why = ", ".join(message["why"])
            logger.info("%s can't be forked (%s); each session imports it afresh", self.source.name, why)
            current.retired = True
        single = self._launch(single=True)
        single.retired = True  # ends with its one session
        message = await asyncio.shield(single.ready)
        if message["op"] == "failed":
            raise self._fault(message)
        return single

    def look(self) -> None:
        """Notice changed files, at most every `_LOOK_SECONDS`."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        fingerprint = self.source.fingerprint()
        if fingerprint == self._fingerprint:
            return
        self._fingerprint = fingerprint
        self.generation += 1
        if self._current is not None:
            logger.info("%s has changed; loading it again", self.source.name)
            self._current.retire()
            self._current = None

    async def close(self) -> None:
        """End all processes."""
        templates = list(self._all)
        for template in templates:
            template.close()
        for template in templates:
            if template.closed is not None:
                await template.closed

    def _launch(self, *, single: bool) -> Template:
        template = Template(self.source, protections=self._protections, state=self._state, single=single)
        self._all.add(template)
        template.on_closed = self._all.discard
        template.launch()
        return template

    def _fault(self, message: dict[str, Any]) -> RuntimeFault:
        text = f"agent {self.source.name} could not be imported:\n{message['traceback']}"
        return RuntimeFault(text, code="RuntimeClientError")
