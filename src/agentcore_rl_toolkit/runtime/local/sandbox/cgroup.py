"""Limits on a session's memory, CPU and processes by control groups, version 1 or 2, whichever the machine has.

Every runtime has a group of its own, `agentcore-rl-<pid>-<n>`, with one group per session in it. Groups that a killed
runtime left behind are removed when the next one starts.
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

from ..policy import SessionPolicy

CONTROLLERS = ("memory", "cpu", "pids")
_PREFIX = "agentcore-rl-"
_PERIOD = 100_000
_numbers = itertools.count()


@dataclass(frozen=True)
class Cgroup:
    """The group of one session: a folder per hierarchy."""

    folders: dict[str, Path]
    """Folder by controller; with version 2 they are all the same."""

    def open_procs(self) -> list[int]:
        """Descriptors a process writes `0` to in order to join."""
        return [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self._unique()]

    def memory_bytes(self) -> int | None:
        """Memory in use, None if it isn't counted."""
        text = self._read_memory("memory.current", "memory.usage_in_bytes")
        return int(text) if text else None

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel ended a process of this group for want of memory."""
        text = self._read_memory("memory.events", "memory.oom_control") or ""
        counts = dict(line.split(maxsplit=1) for line in text.splitlines())
        return int(counts.get("oom_kill", "0")) > 0

    def kill(self) -> None:
        """Kill whatever is in the group."""
        for folder in self._unique():
            with contextlib.suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    os.kill(int(pid), 9)

    async def clear(self) -> None:
        """Kill whatever is in the group, and remove it as soon as the kernel lets go."""
        self.kill()
        for _ in range(100):
            if self.remove():
                return
            await asyncio.sleep(0.02)

    def remove(self) -> bool:
        """Remove the group; False while something is still in it."""
        for folder in self._unique():
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True

    def _read_memory(self, *names: str) -> str | None:
        """The first of these files of the memory controller that is there."""
        for name in names:
            with contextlib.suppress(OSError, KeyError):
                return (self.folders["memory"] / name).read_text()
        return None

    def _unique(self) -> list[Path]:
        return list(dict.fromkeys(self.folders.values()))


class CgroupTree:
    """The runtime's own group; makes one per session."""

    def __init__(self, hierarchies: tuple[dict[str, Path], Path | None] | None = None) -> None:
        self._hierarchies = hierarchies or _hierarchies()
        self.name = f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        self.reasons: dict[str, str] = {}
        """Why a controller can't be used, by controller."""
        self._homes: dict[str, Path] = {}
        self._version2 = False
        for controller in CONTROLLERS:
            try:
                self._homes[controller] = self._home(controller)
            except OSError as error:
                self.reasons[controller] = str(error)

    @property
    def controllers(self) -> tuple[str, ...]:
        """What can be limited here."""
        return tuple(self._homes)

    def use_only(self, controllers: Iterable[str]) -> None:
        """Leave the other controllers alone."""
        wanted = set(controllers)
        for controller in [c for c in self._homes if c not in wanted]:
            home = self._homes.pop(controller)
            if home not in self._homes.values():
                _remove_tree(home)

    def create(self, name: str, policy: SessionPolicy) -> Cgroup:
        """A group for one session, with its limits set."""
        folders = {controller: home / name for controller, home in self._homes.items()}
        group = Cgroup(folders)
        try:
            for folder in group._unique():
                folder.mkdir()
            for controller, folder in folders.items():
                for file, value in self._limits(controller, policy).items():
                    _write(folder / file, value)
        except OSError:
            group.remove()
            raise
        return group

    def close(self) -> None:
        """Remove the runtime's own group, with everything in it."""
        for home in dict.fromkeys(self._homes.values()):
            _remove_tree(home)

    def _limits(self, controller: str, policy: SessionPolicy) -> dict[str, str]:
        quota = str(int(policy.cpus * _PERIOD))
        memory = str(policy.memory_mb << 20)
        if self._version2:
            tables = {
                "memory": {"memory.max": memory, "memory.swap.max": "0"},
                "cpu": {"cpu.max": f"{quota} {_PERIOD}"},
                "pids": {"pids.max": str(policy.processes)},
            }
        else:
            tables = {
                "memory": {"memory.limit_in_bytes": memory},
                "cpu": {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": quota},
                "pids": {"pids.max": str(policy.processes)},
            }
        return tables[controller]

    def _home(self, controller: str) -> Path:
        """Make (or find) the runtime's group in the hierarchy that has `controller`."""
        version1, version2 = self._hierarchies
        if controller in version1:
            home = version1[controller] / self.name
        elif version2 is not None:
            parent = _delegated(version2, controller)
            home, self._version2 = parent / self.name, True
        else:
            raise OSError(errno.ENOENT, f"no control group hierarchy has {controller}")
        for stale in home.parent.glob(f"{_PREFIX}*"):
            pid = stale.name.removeprefix(_PREFIX).partition("-")[0]
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                _remove_tree(stale)
        home.mkdir(exist_ok=True)
        if self._version2:
            _write(home / "cgroup.subtree_control", f"+{controller}")
        return home


def _hierarchies() -> tuple[dict[str, Path], Path | None]:
    """Folder of this process's group by version-1 controller, and in the version-2 hierarchy."""
    version1: dict[str, Path] = {}
    version2: Path | None = None
    mounts: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split()[:3]
        point = fields.split()[4]
        if kind == "cgroup":
            mounts.update(dict.fromkeys(options.split(","), point))
        elif kind == "cgroup2":
            mounts[""] = point
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name not in mounts:
                continue
            folder = Path(mounts[name]) / path.lstrip("/")
            folder = folder if folder.is_dir() else Path(mounts[name])  # the path may lie outside our view
            if name == "":
                version2 = folder
            else:
                version1[name] = folder
    return version1, version2


def _delegated(group: Path, controller: str) -> Path:
    """The nearest version-2 group, ours or above it, under which groups with `controller` can be made."""
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
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(descriptor, value.encode())
    except OSError as error:
        if path.name != "memory.swap.max":  # not there when swap isn't counted
            raise OSError(error.errno, f"{path}: {os.strerror(error.errno or 0)}") from None
    finally:
        os.close(descriptor)


def _remove_tree(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for child in folder.iterdir():
            if child.is_dir():
                _remove_tree(child)
        folder.rmdir()
