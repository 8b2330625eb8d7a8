"""The template: a process that imports the agent once, inside the sandbox's root, and is forked for every session.

Started by `agent.py` as `python -m …template SPEC`. Talks to the runtime over one socket (`channel.py`):

    → ready {forkable, why, seconds}      ← prepare {n, …} with the session's descriptors
    → failed {traceback}                  ← signal {n, signal}
    → exited {n, status}

A prepared session is a process in its sandbox that waits, on a socket of its own, to be told whose session it is:

    ← assign {env, doors}                 → doors, with the sockets it listens on; then it serves

An agent that can't be forked safely (threads, sockets or event loops made at import) is run the other way round: in
`single` mode the process enters a session's sandbox first, imports then, and becomes the one session it prepares.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

from ..agent_code import load_app
from . import linux
from .channel import Channel
from .root import build_root, enter_namespaces
from .sandbox import RootSpec, enter_session, open_doors


@dataclass(frozen=True)
class TemplateSpec:
    """A template's one argument, as JSON."""

    root: RootSpec
    entry: str
    """`file.py` in the agent's folder, or `module:app`."""
    single: bool
    control: int
    """Descriptor of the socket to the runtime."""
    lifeline: int
    """Descriptor of a pipe that ends when the runtime does."""

    @classmethod
    def from_json(cls, text: str) -> TemplateSpec:
        """The inverse of `json.dumps`."""
        values = json.loads(text)
        return cls(**(values | {"root": RootSpec(**values["root"])}))


def main() -> None:
    """Set up the namespaces, then be the template; with process ids of its own, as a child of this process."""
    spec = TemplateSpec.from_json(sys.argv[1])
    os.set_inheritable(spec.control, False)
    os.set_inheritable(spec.lifeline, False)
    enter_namespaces(spec.root.protections)
    if "processes" not in spec.root.protections:
        _be_template(spec)
    pid = os.fork()
    if pid == 0:
        linux.die_with_parent(signal.SIGKILL)
        _be_template(spec)
    os.close(spec.control)
    sys.exit(_watch(pid, spec.lifeline))


def _watch(pid: int, lifeline: int) -> int:
    """Wait for the template to end; end it when the runtime is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.pidfd_open(pid)
    ready, _, _ = select.select([child, lifeline], [], [])
    if child not in ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return _exit_code(status)


def _be_template(spec: TemplateSpec) -> NoReturn:
    channel = Channel(socket.socket(fileno=spec.control))
    code = 0
    try:
        if "filesystem" in spec.root.protections:
            build_root(spec.root)
        if spec.single:
            _become_session(spec, channel)
        else:
            _Template(spec, channel).run()
    except BaseException:
        code = 1
        with contextlib.suppress(OSError):
            channel.send({"op": "failed", "traceback": traceback.format_exc()})
    os._exit(code)


class _Template:
    """Forks a session for every `start`, and reports when one ends."""

    def __init__(self, spec: TemplateSpec, channel: Channel) -> None:
        self._spec, self._channel = spec, channel
        self._sessions: dict[int, int] = {}
        self._own_pids = -1

    def run(self) -> None:
        start = time.monotonic()
        before = _open_things()
        app = _load_app(self._spec)
        unsafe = sorted(_open_things() - before)
        ready = {"op": "ready", "forkable": not unsafe, "why": unsafe, "seconds": time.monotonic() - start}
        if unsafe:
            self._channel.send(ready)
            return
        if "processes" in self._spec.root.protections:
            self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        _prepare_to_fork(app)
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._channel.send(ready)
        while True:
            readable, _, _ = select.select([self._channel.fileno(), wake], [], [])
            if wake in readable:
                os.read(wake, 4096)
                self._reap()
            if self._channel.fileno() in readable:
                message, descriptors = self._channel.receive()
                if message is None:  # the runtime is gone
                    self._kill_all()
                    return
                if message["op"] == "prepare":
                    self._prepare(message, descriptors, app)
                elif message["op"] == "signal":
                    self._signal(message["n"], message["signal"])

    def _prepare(self, message: dict[str, Any], descriptors: list[int], app: Any) -> None:
        if self._own_pids >= 0:
            linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _run_session(self._spec, message, descriptors, app)
        if self._own_pids >= 0:
            linux.setns(self._own_pids, linux.CLONE_NEWPID)
        self._sessions[pid] = message["n"]
        for descriptor in descriptors:
            os.close(descriptor)

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

    def _kill_all(self) -> None:
        for n in list(self._sessions.values()):
            self._signal(n, signal.SIGKILL)


def _run_session(spec: TemplateSpec, message: dict[str, Any], descriptors: list[int], app: Any) -> NoReturn:
    """In a fresh fork: enter the sandbox, then run the app in a child of this process, which becomes its init."""
    listen, log, control, *cgroups = descriptors
    code = 1
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        for descriptor in cgroups:
            os.write(descriptor, b"0")
        enter_session(spec.root, f"session-{message['n']}")
        code = _init(lambda: _be_assigned(spec, app, listen, control, message["folder"]), keep={0, 1, 2})
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _become_session(spec: TemplateSpec, channel: Channel) -> NoReturn:
    """Single mode: the sandbox first, the import in it, then the one session."""
    os.setsid()
    enter_session(spec.root, "session")

    def body() -> None:
        start = time.monotonic()
        try:
            app = _load_app(spec)
        except BaseException:
            channel.send({"op": "failed", "traceback": traceback.format_exc()})
            return
        channel.send({"op": "ready", "forkable": False, "why": [], "seconds": time.monotonic() - start})
        message, descriptors = channel.receive()
        if message is None:
            return
        listen, log, control, *cgroups = descriptors
        for descriptor in cgroups:
            os.write(descriptor, b"0")
            os.close(descriptor)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _be_assigned(spec, app, listen, control, message["folder"])

    os._exit(_init(body, keep=None))


def _be_assigned(spec: TemplateSpec, app: Any, listen: int, control: int, folder: str) -> None:
    """Wait to be told whose session this is, open its doors, serve."""
    from .serve import serve_session

    channel = Channel(socket.socket(fileno=control))
    message, _ = channel.receive()
    if message is None:  # not needed any more
        return
    if "network" in spec.root.protections:
        doors = open_doors(spec.root, [tuple(door) for door in message["doors"]])
        channel.send({"op": "doors"}, [door.fileno() for door in doors])
        for door in doors:
            door.close()
    channel.close()
    os.environ.update(message["env"])
    os.chdir(folder)
    serve_session(app, socket.socket(fileno=listen))


def _init(body: Any, keep: set[int] | None) -> int:
    """Run `body` in a child; meanwhile pass on SIGTERM and bury orphans, as the first process of a system must."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    if keep is not None:  # above all the listening socket: it has to vanish with the app
        _close_all_but(keep)
    signal.signal(signal.SIGTERM, lambda *_: _quietly_kill(pid, signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        done, status = os.waitpid(-1, 0)
        if done == pid:
            return _exit_code(status)


# --- the agent -----------------------------------------------------------------------------------------------------


def _load_app(spec: TemplateSpec) -> Any:
    return load_app("/app" if "filesystem" in spec.root.protections else spec.root.agent_folder, spec.entry)


def _open_things() -> set[str]:
    """What a fork would duplicate in a broken state: threads, and descriptors that others talk to."""
    found = set()
    if not os.path.isdir("/proc/self/task"):
        import threading

        return {f"thread {t.name}" for t in threading.enumerate() if t is not threading.main_thread()}
    for task in os.listdir("/proc/self/task"):
        if task != str(os.getpid()):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
                found.add(f"thread {task} ({file.read().strip()})")
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if target.startswith(("socket:", "anon_inode:")):
                found.add(f"descriptor {descriptor} ({target})")
    return found


def _prepare_to_fork(app: Any) -> None:
    """Pay now, once, for what every session would pay for, and keep pages shared."""
    from .serve import warm_up

    warm_up(app)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    gc.collect()
    gc.freeze()


def _close_all_but(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        if int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _exit_code(status: int) -> int:
    """As a shell would give it: 128 and the signal's number for a process that was killed."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _quietly_kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    main()
