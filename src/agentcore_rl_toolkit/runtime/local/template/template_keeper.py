"""The template processes of an agent, as the runtime sees them; `template_process.py` is the other side.

Changed code makes a new template. Sessions of the old one live on, and it ends with the last of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import RuntimeFault, TemplateGone
from ...hosting.agent_files import Fingerprint, fingerprint
from ..agent_source import AgentSource
from ..sandbox.cgroup import Cgroup, CgroupTree
from ..sandbox.import_paths import WORKING_DIRECTORY, isolated_command
from ..sandbox.namespaces import SESSION_UID
from ..sandbox.root_filesystem import RootSpec
from .channel import Channel
from .output_log import OutputLog

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_LOOK_SHARE = 20
_LOG_TAIL = 4000
_LISTED = 10


@dataclass(frozen=True)
class Machine:
    """What all templates and sessions of a runtime share of the machine."""

    state: Path
    """The runtime's own folder."""
    protections: list[str]
    cgroups: CgroupTree
    user_site: str | None
    """The folder of `pip install --user`, if this Python uses it."""


class TemplateHandle:
    """One template process."""

    def __init__(self, source: AgentSource, machine: Machine, *, preload: bool) -> None:
        self.source = source
        self.ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        """The template's first message: `ready`, `failed` or `unsafe`; or `gone` if it was closed before."""
        self.on_closed: Callable[[TemplateHandle], object] = lambda _: None
        self.closed: asyncio.Task[None] | None = None
        self._machine, self._preload = machine, preload
        self._on_exited: dict[int, Callable[[int], None]] = {}
        self._retired = False
        self._root = machine.state / f"root-{id(self):x}"
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._cgroup: Cgroup | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._lifeline = -1
        self._log = OutputLog(machine.state / f"template-{id(self):x}.log")

    @property
    def has_ended(self) -> bool:
        """Whether a template that was launched has ended, or is ending."""
        return self._channel is None

    def launch(self) -> None:
        """Start the process; `ready` tells how it went."""
        self._root.mkdir()
        self._channel, other_end = Channel.pair()
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        joins: list[int] = []
        if self._machine.cgroups.controllers:
            self._cgroup = self._machine.cgroups.create(f"t{id(self):x}", self.source.policy)
            joins = self._cgroup.open_procs()
        self._process = subprocess.Popen(
            isolated_command(f"{__package__}.template_process"),
            env=self.source.environment(),
            pass_fds=(other_end.fileno(), lifeline, *joins),
            stdin=subprocess.PIPE,
            stdout=self._log.write_end,
            stderr=self._log.write_end,
            start_new_session=True,
            cwd=WORKING_DIRECTORY,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:  # `_receive` notices that it ended
            stdin.write(json.dumps(self._spec(other_end.fileno(), lifeline, joins)).encode())
        other_end.close()
        self._log.close_write_end()
        for descriptor in (lifeline, *joins):
            os.close(descriptor)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel.fileno(), self._receive)
        loop.call_later(self.source.policy.start_timeout, self._time_out)

    def _spec(self, control: int, lifeline: int, cgroups: list[int]) -> dict[str, Any]:
        is_root = os.geteuid() == 0
        root = RootSpec(
            root=str(self._root),
            agent_folder=self.source.folder,
            protections=self._machine.protections,
            python_path=[os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p],
            disk_mb=self.source.policy.disk_mb,
            memory_mb=self.source.policy.memory_mb,
            uid=SESSION_UID if is_root else os.geteuid(),
            gid=SESSION_UID if is_root else os.getegid(),
        )
        return {
            "root": dataclasses.asdict(root),
            "entry": self.source.entry,
            "preload": self._preload,
            "user_site": self._machine.user_site,
            "control": control,
            "lifeline": lifeline,
            "cgroups": cgroups,
        }

    def prepare(self, n: int, folder: str, descriptors: list[int], on_exited: Callable[[int], None]) -> None:
        """Fork a session off; raises `TemplateGone` if the template has ended."""
        self._on_exited[n] = on_exited
        try:
            assert self._channel is not None
            self._channel.send({"op": "prepare", "n": n, "folder": folder}, descriptors)
        except (OSError, AssertionError):
            self._on_exited.pop(n, None)
            raise TemplateGone(f"the template of {self.source.name} has ended", hint="try again") from None

    def signal(self, n: int, number: int) -> None:
        """Send a signal to a session."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send({"op": "signal", "n": n, "signal": number})

    def retire(self) -> None:
        """Start no more sessions, and end with the last one."""
        self._retired = True
        self._close_if_done()

    def close(self) -> None:
        """End now, with all sessions; `closed` completes when the processes have ended."""
        if self._channel is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._channel.fileno())
        self._channel.close()
        self._channel = None
        os.close(self._lifeline)
        self._set_ready({"op": "gone"})
        self.closed = loop.create_task(self._wait_and_clean_up())

    async def _wait_and_clean_up(self) -> None:
        assert self._process is not None
        if "processes" not in self._machine.protections:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
        await asyncio.to_thread(self._process.wait)
        for n in list(self._on_exited):
            self._on_exited.pop(n)(-9)
        with contextlib.suppress(OSError):
            self._root.rmdir()
        self._log.close()
        self._log.path.unlink(missing_ok=True)
        if self._cgroup is not None:
            await self._cgroup.clear()
        self.on_closed(self)

    def _receive(self) -> None:
        assert self._channel is not None
        try:
            message, _ = self._channel.receive()
        except BlockingIOError:
            return
        if message is None:
            self._fail("the template's process ended")
        elif message["op"] == "exited":
            on_exited = self._on_exited.pop(message["n"], None)
            if on_exited is not None:
                on_exited(message["status"])
            self._close_if_done()
        elif message["op"] == "failed":
            out_of_memory = self._cgroup is not None and self._cgroup.ran_out_of_memory()
            limit = f": it ran out of its {self.source.policy.memory_mb} MB of memory" if out_of_memory else ""
            self._fail(message["traceback"] + limit)
        else:
            if self._cgroup is not None:  # only the throwaway session was in it
                self._clearing = asyncio.get_running_loop().create_task(self._cgroup.clear())
            self._set_ready(message)

    def _fail(self, text: str) -> None:
        if not self.ready.done():
            printed = self._log.tail(_LOG_TAIL)
            self._set_ready({"op": "failed", "traceback": f"{text}\nlast output:\n{printed}" if printed else text})
        self.close()

    def _time_out(self) -> None:
        if not self.ready.done():
            self._fail(f"the agent was not imported within {self.source.policy.start_timeout:g} s")

    def _set_ready(self, message: dict[str, Any]) -> None:
        if not self.ready.done():
            self.ready.set_result(message)

    def _close_if_done(self) -> None:
        if self._retired and not self._on_exited:
            self.close()


class TemplateKeeper:
    """Keeps an up-to-date template for one agent."""

    def __init__(self, source: AgentSource, machine: Machine) -> None:
        self.source = source
        self.generation = 0
        """Goes up with every change of the agent's code."""
        self.templates: set[TemplateHandle] = set()
        """Those whose processes have not ended."""
        self._machine, self._preload = machine, True
        self._current: TemplateHandle | None = None
        self._fingerprint: Fingerprint | None = None
        self._look_at = 0.0
        self._closed = False

    async def template(self) -> TemplateHandle:
        """A template to prepare one session from; raises a fault with the agent's traceback if it can't be imported."""
        while not self._closed:
            self.check_for_changes()
            if self._current is not None and self._current.has_ended:
                self._current = None  # it was killed
            current = self._current = self._current or self._launch()
            message = await asyncio.shield(current.ready)
            if message["op"] == "ready":
                return current
            if self._current is current:
                self._current = None  # the next call tries again
            if message["op"] == "failed":
                text = f"agent {self.source.name} could not be imported:\n{message['traceback']}"
                raise RuntimeFault(text, code="RuntimeClientError", reason="agent")
            if message["op"] == "unsafe":
                why = ", ".join(message["why"])
                logger.info("%s: packages can't be preloaded (%s); each session imports them", self.source.name, why)
                self._preload = False
                current.close()
        raise TemplateGone("the runtime was stopped", hint="try again")

    def check_for_changes(self) -> None:
        """Retire the template if the agent's code has changed. Looking takes at most a twentieth of the time."""
        now = time.monotonic()
        if now < self._look_at:
            return
        found = fingerprint(self.source.folder, self._fingerprint)
        self._look_at = time.monotonic() + max(_LOOK_SECONDS, _LOOK_SHARE * (time.monotonic() - now))
        if found == self._fingerprint:
            return
        self._fingerprint = found if self._fingerprint is None else fingerprint(self.source.folder)
        self.generation += 1
        self._preload = True
        if self._current is not None:
            logger.info("%s has changed; loading it again", self.source.name)
            self._current.retire()
            self._current = None

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        templates = list(self.templates)
        for template in templates:
            template.close()
        await asyncio.gather(*(template.closed for template in templates if template.closed is not None))

    def _launch(self) -> TemplateHandle:
        template = TemplateHandle(self.source, self._machine, preload=self._preload)
        self.templates.add(template)
        template.on_closed = self.templates.discard
        template.ready.add_done_callback(self._log_excluded)
        template.launch()
        return template

    def _log_excluded(self, ready: asyncio.Future[dict[str, Any]]) -> None:
        found = [] if ready.cancelled() else ready.result().get("excluded", [])
        if found:
            listed = ", ".join(found[:_LISTED]) + (f" and {len(found) - _LISTED} more" if len(found) > _LISTED else "")
            logger.info("%s: sessions don't get %s", self.source.name, listed)
