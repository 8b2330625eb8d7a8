"""Limits a session's memory, CPU and processes by control groups, version 1 or 2, whichever the machine has.

Every runtime has its own group, `agentcore-rl-<pid>-<n>`, with one group per session below it. A starting runtime
removes the groups that a killed one left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..agent_source import SessionPolicy

CONTROLLERS = ("memory", "cpu", "pids")
_PREFIX = "agentcore-rl-"
_PERIOD = 100_000
_TCP_BYTES = 64 << 20
"""What a session's TCP connections may buffer, where the kernel counts that apart from its memory. All processes of
the machine share a few gigabytes, and without them every connection is slow."""
_OPTIONAL = ("memory.swap.max", "memory.kmem.tcp.limit_in_bytes")
"""Files that a kernel lacks if it doesn't count what they limit."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Cgroup:
    """The group of one session."""

    folders: dict[str, Path]
    """Folder by controller; with version 2 they are all the same."""

    def open_procs(self) -> list[int]:
        """Descriptors that a process writes `0` to in order to join."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in set(self.folders.values())]

    def memory_bytes(self) -> int | None:
        """Memory in use; None if the kernel doesn't count it."""
        text = self._read_memory("memory.current", "memory.usage_in_bytes")
        return int(text) if text else None

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed a process of this group because the group reached its memory limit."""
        text = self._read_memory("memory.events", "memory.oom_control") or ""
        counts = dict(line.split(maxsplit=1) for line in text.splitlines())
        return int(counts.get("oom_kill", "0")) > 0

    async def clear(self) -> None:
        """Kill every process in the group, and remove it as soon as the kernel allows."""
        if self.remove():  # the session's own processes have ended
            return
        for folder in set(self.folders.values()):
            with contextlib.suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    os.kill(int(pid), 9)
        for _ in range(100):
            if self.remove():
                return
            await asyncio.sleep(0.02)

    def remove(self) -> bool:
        """Remove the group; False while a process is still in it."""
        for folder in set(self.folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def _read_memory(self, *names: str) -> str | None:
        """The first of these files that the memory controller has."""
        for name in names:
            with contextlib.suppress(OSError, KeyError):
                return (self.folders["memory"] / name).read_text()
        return None


class CgroupTree:
    """The runtime's own group; creates one below it per session."""

    def __init__(
        self,
        wanted: Iterable[str] = CONTROLLERS,
        hierarchies: tuple[dict[str, Path], Path | None] | None = None,
    ) -> None:
        self._version1, self._version2 = hierarchies or _hierarchies()
        self.name = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        self.reasons: dict[str, str] = {}
        """Why a controller can't be used, by controller."""
        self._homes: dict[str, Path] = {}
        for controller in wanted:
            try:
                self._homes[controller] = self._make_home(controller)
            except OSError as error:
                self.reasons[controller] = str(error)

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers that limit sessions."""
        return tuple(self._homes)

    @property
    def folders(self) -> list[str]:
        """The runtime's own groups."""
        return sorted({str(home) for home in self._homes.values()})

    def create(self, name: str, policy: SessionPolicy) -> Cgroup:
        """A group for one session, with its limits set."""
        group = Cgroup({controller: home / name for controller, home in self._homes.items()})
        try:
            for folder in set(group.folders.values()):
                folder.mkdir()
            for controller, folder in group.folders.items():
                for file, value in self.limits(controller, policy).items():
                    _write(folder / file, value)
        except OSError:
            group.remove()
            raise
        return group

    def close(self) -> None:
        """Remove the runtime's own group, with everything in it."""
        for home in set(self._homes.values()):
            _remove_tree(home)

    def limits(self, controller: str, policy: SessionPolicy) -> dict[str, str]:
        """What a policy means for a controller: values by file name."""
        quota, memory = str(int(policy.cpus * _PERIOD)), str(policy.memory_mb << 20)
        if controller == "pids":
            return {"pids.max": str(policy.processes)}
        if controller in self._version1:
            cpu = {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": quota}
            tcp = str(min(_TCP_BYTES, policy.memory_mb << 20))
            memory_files = {"memory.limit_in_bytes": memory, "memory.kmem.tcp.limit_in_bytes": tcp}
            return cpu if controller == "cpu" else memory_files
        cpu = {"cpu.max": f"{quota} {_PERIOD}"}
        return cpu if controller == "cpu" else {"memory.max": memory, "memory.swap.max": "0"}

    def _make_home(self, controller: str) -> Path:
        """Make (or find) the runtime's group in the hierarchy that has `controller`."""
        if controller in self._version1:
            home = self._version1[controller] / self.name
        elif self._version2 is not None:
            home = _delegated(self._version2, controller) / self.name
        else:
            raise OSError(errno.ENOENT, f"no control group hierarchy has {controller}")
        for stale in home.parent.glob(f"{_PREFIX}*"):
            pid = stale.name.removeprefix(_PREFIX).partition("-")[0]
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                _remove_tree(stale)
        home.mkdir(exist_ok=True)
        if controller == "cpu":
            self._weigh_as_one_process_per_core(home)
        if controller not in self._version1:
            _write(home / "cgroup.subtree_control", f"+{controller}")
        return home

    def _weigh_as_one_process_per_core(self, home: Path) -> None:
        """Let all sessions together have as much of every core as one ordinary process.

        The kernel divides a group's weight among the cores on which its processes run. By default a group weighs as
        much as one process: on 16 cores, a busy thread of the trainer got 16 times as much of its core as all sessions.
        """
        cores = os.cpu_count() or 1
        if "cpu" in self._version1:
            _write(home / "cpu.shares", str(1024 * cores))
        else:
            _write(home / "cpu.weight", str(min(100 * cores, 10_000)))


def remove_groups(folders: Iterable[str]) -> bool:
    """Remove the groups of a runtime that was killed; False while one has a process."""
    for folder in folders:
        _remove_tree(Path(folder))
    return not any(os.path.isdir(folder) for folder in folders)


def _hierarchies() -> tuple[dict[str, Path], Path | None]:
    """Folder of this process's group by version-1 controller, and in the version-2 hierarchy."""
    mounts: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split()[:3]
        point = fields.split()[4]
        if kind == "cgroup":
            mounts.update(dict.fromkeys(options.split(","), point))
        elif kind == "cgroup2":
            mounts[""] = point
    found: dict[str, Path] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in mounts:
                folder = Path(mounts[name]) / path.lstrip("/")
                found[name] = folder if folder.is_dir() else Path(mounts[name])  # a container may not see the path
    version2 = found.pop("", None)
    return found, version2


def _delegated(group: Path, controller: str) -> Path:
    """The nearest version-2 group, ours or above it, under which we may create groups with `controller`."""
    reason: OSError = OSError(errno.ENOENT, f"{controller} is not available in {group}")
    for parent in (group, *group.parents):
        if not (parent / "cgroup.controllers").exists():
            break
        if controller not in (parent / "cgroup.controllers").read_text().split():
            continue
        try:
            if controller not in (parent / "cgroup.subtree_control").read_text().split():
                _write(parent / "cgroup.subtree_control", f"+{controller}")
            probe = parent / f"{_PREFIX}probe-{os.getpid()}"
            probe.mkdir()
            probe.rmdir()
            return parent
        except OSError as error:
            reason = error
    raise reason


def _write(path: Path, value: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        try:
            os.write(descriptor, value.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        if path.name not in _OPTIONAL:
            raise OSError(error.errno, f"{path}: {os.strerror(error.errno or 0)}") from None


def _remove_tree(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for child in folder.iterdir():
            if child.is_dir():
                _remove_tree(child)
        folder.rmdir()
