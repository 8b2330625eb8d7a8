"""The template: a process that has the agent's packages loaded, inside the sandbox's root, and is forked for sessions.

`template_keeper.py` starts it and writes a `TemplateSpec` to its standard input. It has the rights to build sandboxes,
so none of the agent's code ever runs in it: a throwaway session finds out which installed packages the agent imports
(`preload.py`), the template imports those, and each session imports the agent itself, in its sandbox. It talks to the
runtime over one channel, which no session holds:

    → ready {excluded, reads_model}  ← prepare {n, folder} with the session's descriptors
    → failed {traceback}          ← signal {n, signal}
    → unsafe {why}                → exited {n, status}

`unsafe` means that a package started threads or opened sockets on import, so this process must not be forked; the
runtime then starts a template that preloads nothing.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import site
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

from ...hosting.agent_code import import_traceback, load_app
from ..sandbox import syscalls as linux
from ..sandbox.huge_pages import collapse_memory
from ..sandbox.import_paths import trusted_folders
from ..sandbox.namespaces import enter_session, prepare_to_enter
from ..sandbox.root_filesystem import Root, RootSpec, build_root, enter_namespaces
from .channel import Channel
from .init_process import IMPORT_FAILED, Body, InitProcess, close_all_but, exit_code, read_assignment
from .preload import observe_imports, preload
from .session_server import warm_up_template

_LARGEST_REPORT = 1 << 20
_LONGEST_TRACEBACK = 20_000


@dataclass(frozen=True)
class TemplateSpec:
    """What a template reads from its standard input, as JSON; sessions could read its arguments."""

    root: RootSpec
    entry: str
    """`file.py` in the agent's folder, or `module:app`."""
    preload: bool
    user_site: str | None
    """The folder of `pip install --user`, if this Python uses it."""
    control: int
    """Descriptor of the socket to the runtime."""
    lifeline: int
    """Descriptor of a pipe that closes when the runtime ends."""
    cgroups: list[int]
    """Descriptors of the control groups that limit the throwaway session."""

    @classmethod
    def from_json(cls, text: str) -> TemplateSpec:
        values = json.loads(text)
        return cls(**(values | {"root": RootSpec(**values["root"])}))

    def has(self, protection: str) -> bool:
        return protection in self.root.protections


def main() -> None:
    """Enter the namespaces, then run the template in a child process with its own process ids."""
    spec = TemplateSpec.from_json(sys.stdin.buffer.read().decode())
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for descriptor in (spec.control, spec.lifeline, *spec.cgroups):
        os.set_inheritable(descriptor, False)
    if spec.user_site:
        site.addsitedir(spec.user_site)
    enter_namespaces(spec.root.protections)
    if not spec.has("processes"):
        _run_template(spec)
    pid = os.fork()
    if pid == 0:
        linux.die_with_parent(signal.SIGKILL)
        _run_template(spec)
    close_all_but({0, 1, 2, spec.lifeline})
    sys.exit(_watch(pid, spec.lifeline))


def _watch(pid: int, lifeline: int) -> int:
    """Wait for the template to end; kill it when the runtime ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.pidfd_open(pid)
    ready, _, _ = select.select([child, lifeline], [], [])
    if child not in ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return exit_code(status)


def _run_template(spec: TemplateSpec) -> NoReturn:
    channel = Channel(socket.socket(fileno=spec.control))
    code = 0
    try:
        trusted = trusted_folders()
        root = build_root(spec.root) if spec.has("filesystem") else Root(spec.root)
        TemplateProcess(spec, root, channel).run(trusted)
    except BaseException:
        code = 1
        with contextlib.suppress(OSError):
            channel.send({"op": "failed", "traceback": traceback.format_exc()[-_LONGEST_TRACEBACK:]})
    os._exit(code)


class TemplateProcess:
    """Forks a session for every `prepare`, and reports when one ends."""

    def __init__(self, spec: TemplateSpec, root: Root, channel: Channel) -> None:
        self._spec, self._root, self._channel = spec, root, channel
        self._sessions: dict[int, int] = {}
        """Session number by process id."""
        self._reads_model = False
        """Whether the agent reads where its model is when it is imported."""
        self._own_pids = -1
        if spec.has("processes"):
            self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def run(self, trusted: list[str]) -> None:
        """Preload what sessions need, then fork sessions until the runtime ends."""
        report = self._observe_imports()
        if "failed" in report:
            self._channel.send({"op": "failed", "traceback": str(report["failed"])[-_LONGEST_TRACEBACK:]})
            return
        unsafe = preload(report if self._spec.preload else {}, trusted)
        if unsafe:
            self._channel.send({"op": "unsafe", "why": unsafe[:20]})
            return
        warm_up_template()
        prepare_to_enter()
        gc.collect()
        gc.freeze()  # keeps memory pages shared
        collapse_memory()
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._reads_model = report.get("reads_model") is True
        self._channel.send({"op": "ready", "excluded": self._root.excluded[:100], "reads_model": self._reads_model})
        while True:
            readable, _, _ = select.select([self._channel.fileno(), wake], [], [])
            if wake in readable:
                os.read(wake, 4096)
                self._reap()
            if self._channel.fileno() in readable and not self._handle_message():
                return

    def _observe_imports(self) -> dict[str, Any]:
        """Import the agent in a throwaway session, and return its report."""
        read, write = os.pipe2(os.O_CLOEXEC)
        folder = "/app" if self._spec.has("filesystem") else self._spec.root.agent_folder

        def body() -> None:
            try:
                own = self._spec.root.python_path
                report: dict[str, Any] = observe_imports(folder, own, lambda: self._load(folder))
            except BaseException as error:  # an agent may also exit
                report = {"failed": import_traceback(error, folder)}
            with os.fdopen(write, "wb") as file:
                file.write(json.dumps(report).encode() + b"\n")

        pid = self._fork("import", self._spec.cgroups, -1, {write}, body)
        os.close(write)
        for descriptor in self._spec.cgroups:
            os.close(descriptor)
        with os.fdopen(read, "rb") as file:
            line = file.readline(_LARGEST_REPORT)
        _, status = os.waitpid(pid, 0)
        try:
            report = json.loads(line)
        except (ValueError, RecursionError):
            return {"failed": f"the process that imports it ended with exit code {exit_code(status)}"}
        return report if isinstance(report, dict) else {}

    def _handle_message(self) -> bool:
        """Handle the runtime's next message; False when the runtime has closed the channel."""
        message, descriptors = self._channel.receive()
        if message is None:
            for n in list(self._sessions.values()):
                self._signal(n, signal.SIGKILL)
            return False
        if message["op"] == "prepare":
            self._prepare(message["n"], message["folder"], descriptors)
        elif message["op"] == "signal":
            self._signal(message["n"], message["signal"])
        return True

    def _prepare(self, n: int, folder: str, descriptors: list[int]) -> None:
        listen, awaited, log, control, *cgroups = descriptors

        def body() -> None:
            self._run_session(folder, listen, awaited)

        self._sessions[self._fork(f"session-{n}", cgroups, control, {listen, awaited}, body, log)] = n
        for descriptor in descriptors:
            os.close(descriptor)

    def _fork(self, name: str, cgroups: list[int], control: int, keep: set[int], body: Body, log: int = -1) -> int:
        """Fork a process that takes on a session's limits, enters its sandbox, and runs `body` in a child."""
        if self._own_pids >= 0:
            linux.unshare(linux.CLONE_NEWPID)
        pid = linux.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                if log >= 0:
                    os.dup2(log, 1)
                    os.dup2(log, 2)
                os.setsid()
                for descriptor in cgroups:
                    os.write(descriptor, b"0")
                enter_session(self._root, name)
                os._exit(InitProcess(self._spec.root.protections, control, keep, body).run())
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        if self._own_pids >= 0:
            linux.setns(self._own_pids, linux.CLONE_NEWPID)
        return pid

    def _run_session(self, folder: str, listen: int, awaited: int) -> None:
        """In the app's process: import the agent, wait to be assigned, serve.

        An agent that reads where its model is when it is imported waits first, and finds the rollout's.
        """
        from .session_server import serve_session

        if self._reads_model:
            variables = read_assignment(awaited)
            if variables is None:
                return
            os.environ.update(variables)
            awaited = -1
        app = self._import(folder)
        os.chdir(folder)
        serve_session(app, socket.socket(fileno=listen), awaited)

    def _import(self, folder: str) -> Any:
        try:
            return self._load(folder)
        except BaseException as error:
            sys.stderr.write(import_traceback(error, folder))
            raise SystemExit(IMPORT_FAILED) from None

    def _load(self, folder: str) -> Any:
        sys.argv = [self._spec.entry.partition(":")[0]]
        sys.path[:0] = self._spec.root.python_path
        return load_app(folder, self._spec.entry)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._sessions:
                code = os.waitstatus_to_exitcode(status)
                self._channel.send({"op": "exited", "n": self._sessions.pop(pid), "status": code})

    def _signal(self, n: int, number: int) -> None:
        for pid, session in self._sessions.items():
            if session == n:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, number) if number == signal.SIGKILL else os.kill(pid, number)
