"""An agent as the runtime knows it: where its code is, and the template processes that its sessions come from.

Service side of `template.py`. Changed code makes a new template; sessions of the old one live on, and it goes when the
last of them has ended. Which sessions are prepared, and when, is `pool.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import site
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import RuntimeFault, TemplateGone
from ..hosting.agent_code import find_agent
from ..hosting.agent_files import Fingerprint, fingerprint
from .policy import SessionPolicy
from .sandbox.cgroup import Cgroup, CgroupTree
from .sandbox.namespaces import SESSION_UID
from .sandbox.root_filesystem import RootSpec
from .sessions.output_log import OutputLog
from .template.channel import Channel
from .template.isolated_python import WORKING_DIRECTORY, isolated_command

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_LOOK_SHARE = 20
_LOG_TAIL = 4000
_SHOWN = 10
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

    def environment(self) -> dict[str, str]:
        """What a session's process gets of the host's environment: nothing secret."""
        kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        return kept | _ONE_THREAD | {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"} | self.env


class Template:
    """One template process."""

    def __init__(
        self, source: AgentSource, *, protections: list[str], state: Path, cgroups: CgroupTree, preload: bool
    ) -> None:
        self.source = source
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.on_exited: dict[int, Callable[[int], None]] = {}
        self.on_closed: Callable[[Template], object] = lambda _: None
        self.closed: asyncio.Task[None] | None = None
        self.retired = False
        self._protections, self._state, self._cgroups, self._preload = protections, state, cgroups, preload
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._cgroup: Cgroup | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._log: OutputLog | None = None
        self._lifeline = -1

    def launch(self) -> None:
        """Start the process; `ready` says how it went."""
        name = f"{id(self):x}"
        (self._state / f"root-{name}").mkdir()
        channel, theirs = Channel.pair()
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self._log = OutputLog(self._state / f"template-{name}.log")
        joins: list[int] = []
        if self._cgroups.controllers:
            self._cgroup = self._cgroups.create(f"t{name}", self.source.policy)
            joins = self._cgroup.open_procs()
        spec = self._spec(theirs.fileno(), lifeline, joins)
        self._process = subprocess.Popen(
            isolated_command(f"{__package__}.template.template_process"),
            env=self.source.environment(),
            pass_fds=(theirs.fileno(), lifeline, *joins),
            stdin=subprocess.PIPE,
            stdout=self._log.write_end,
            stderr=self._log.write_end,
            start_new_session=True,
            cwd=WORKING_DIRECTORY,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:  # it has ended; `_received` will hear
            stdin.write(json.dumps(spec).encode())
        theirs.close()
        self._log.close_write_end()
        for descriptor in (lifeline, *joins):
            os.close(descriptor)
        self._channel = channel
        loop = asyncio.get_running_loop()
        loop.add_reader(channel.fileno(), self._received)
        loop.call_later(self.source.policy.start_timeout, self._too_late)

    def _spec(self, control: int, lifeline: int, cgroups: list[int]) -> dict[str, Any]:
        privileged = os.geteuid() == 0
        root = RootSpec(
            root=str(self._state / f"root-{id(self):x}"),
            agent_folder=self.source.folder,
            protections=self._protections,
            python_path=[os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p],
            disk_mb=self.source.policy.disk_mb,
            memory_mb=self.source.policy.memory_mb,
            uid=SESSION_UID if privileged else os.geteuid(),
            gid=SESSION_UID if privileged else os.getegid(),
        )
        return {
            "root": dataclasses.asdict(root),
            "entry": self.source.entry,
            "preload": self._preload,
            "user_site": site.getusersitepackages() if site.ENABLE_USER_SITE else None,
            "control": control,
            "lifeline": lifeline,
            "cgroups": cgroups,
        }

    def prepare(self, n: int, folder: str, descriptors: list[int], on_exited: Callable[[int], None]) -> None:
        """Have a session forked off; a fault that is worth another try if the template is gone."""
        self.on_exited[n] = on_exited
        try:
            assert self._channel is not None
            self._channel.send({"op": "prepare", "n": n, "folder": folder}, descriptors)
        except (OSError, AssertionError):
            self.on_exited.pop(n, None)
            raise TemplateGone(f"the template of {self.source.name} is gone", hint="try again") from None

    def signal(self, n: int, number: int) -> None:
        """Send a signal to a session."""
        if self._channel is not None:
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
        self._answer({"op": "gone"})
        self.closed = loop.create_task(self._bury())

    async def _bury(self) -> None:
        assert self._process is not None
        assert self._log is not None
        if "processes" not in self._protections:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
        await asyncio.to_thread(self._process.wait)
        for n in list(self.on_exited):
            self.on_exited.pop(n)(-9)
        with contextlib.suppress(OSError):
            (self._state / f"root-{id(self):x}").rmdir()
        self._log.close()
        self._log.path.unlink(missing_ok=True)
        if self._cgroup is not None:
            await self._cgroup.clear()
        self.on_closed(self)

    def _received(self) -> None:
        assert self._channel is not None
        try:
            message, _ = self._channel.receive()
        except BlockingIOError:
            return
        if message is None:
            self._failed("the template's process ended")
        elif message["op"] == "exited":
            on_exited = self.on_exited.pop(message["n"], None)
            if on_exited is not None:
                on_exited(message["status"])
            self._close_if_done()
        elif message["op"] == "failed":
            self._failed(message["traceback"] + self._why_it_failed())
        else:
            if self._cgroup is not None:  # only the import that came before was in it
                self._tidying = asyncio.get_running_loop().create_task(self._cgroup.clear())
            self._answer(message)

    def _failed(self, text: str) -> None:
        if not self.ready.done():
            assert self._log is not None
            printed = self._log.tail(_LOG_TAIL)
            self._answer({"op": "failed", "traceback": f"{text}\nlast output:\n{printed}" if printed else text})
        self.close()

    def _why_it_failed(self) -> str:
        if self._cgroup is None or not self._cgroup.ran_out_of_memory():
            return ""
        return f": it ran out of its {self.source.policy.memory_mb} MB of memory"

    def _too_late(self) -> None:
        if not self.ready.done():
            self._failed(f"the agent was not imported within {self.source.policy.start_timeout:g} s")

    def _answer(self, message: dict[str, Any]) -> None:
        if not self.ready.done():
            self.ready.set_result(message)

    def _close_if_done(self) -> None:
        if self.retired and not self.on_exited:
            self.close()


class TemplateKeeper:
    """Keeps an up-to-date template for one agent."""

    def __init__(self, source: AgentSource, *, protections: list[str], state: Path, cgroups: CgroupTree) -> None:
        self.source = source
        self.generation = 0
        """Goes up whenever the agent's code has changed."""
        self._made_of: dict[str, Any] = {"protections": protections, "state": state, "cgroups": cgroups}
        self._preload = True
        self._current: Template | None = None
        self._fingerprint: Fingerprint | None = None
        self._look_at = 0.0
        self._all: set[Template] = set()
        self._closed = False

    async def template(self) -> Template:
        """A template to prepare one session from; a fault with the agent's own traceback if there can't be one."""
        while not self._closed:
            self.look()
            current = self._current = self._current or self._launch()
            message = await asyncio.shield(current.ready)
            if message["op"] == "ready":
                return current
            if self._current is current:
                self._current = None  # the next one tries again
            if message["op"] == "failed":
                text = f"agent {self.source.name} could not be imported:\n{message['traceback']}"
                raise RuntimeFault(text, code="RuntimeClientError", reason="agent")
            if message["op"] == "unsafe":
                why = ", ".join(message["why"])
                logger.info("%s: packages can't be preloaded (%s); each session imports them", self.source.name, why)
                self._preload = False
                current.close()
        raise TemplateGone("the runtime was stopped", hint="try again")

    def look(self) -> None:
        """Notice changed code, now and then: looking takes at most a twentieth of the time."""
        now = time.monotonic()
        if now < self._look_at:
            return
        found = fingerprint(self.source.folder, self._fingerprint)
        self._look_at = time.monotonic() + max(_LOOK_SECONDS, _LOOK_SHARE * (time.monotonic() - now))
        if found == self._fingerprint:
            return
        if self._fingerprint is not None:
            found = fingerprint(self.source.folder)
        self._fingerprint = found
        self.generation += 1
        self._preload = True
        if self._current is not None:
            logger.info("%s has changed; loading it again", self.source.name)
            self._current.retire()
            self._current = None

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        templates = list(self._all)
        for template in templates:
            template.close()
        for template in templates:
            if template.closed is not None:
                await template.closed

    def _launch(self) -> Template:
        template = Template(self.source, **self._made_of, preload=self._preload)
        self._all.add(template)
        template.on_closed = self._all.discard
        template.ready.add_done_callback(self._say_what_was_left_out)
        template.launch()
        return template

    def _say_what_was_left_out(self, ready: asyncio.Future[dict[str, Any]]) -> None:
        found = [] if ready.cancelled() else ready.result().get("left_out", [])
        if found:
            shown = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
            logger.info("%s: sessions don't get %s", self.source.name, shown)
