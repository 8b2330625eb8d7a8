"""Control groups of version 2, which few test machines have for themselves: the same files, in a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from agentcore_rl_toolkit.runtime.local.agent_source import SessionPolicy
from agentcore_rl_toolkit.runtime.local.sandbox import cgroup


def make_group(folder: Path, controllers: str, enabled: str = "") -> Path:
    folder.mkdir()
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.subtree_control").write_text(enabled)
    return folder


def test_version_2_limits(tmp_path: Path) -> None:
    home = make_group(tmp_path / "home", "cpu memory pids", "cpu memory pids")
    tree = cgroup.CgroupTree(hierarchies=({}, home))
    assert tree.controllers == ("memory", "cpu", "pids")
    policy = SessionPolicy(memory_mb=64, cpus=0.5, processes=9)
    group = tree.create("s1", policy)
    folder = home / tree.name / "s1"
    assert set(group.folders.values()) == {folder}
    read = {path.name: path.read_text() for path in folder.iterdir()}
    assert read == {"memory.max": str(64 << 20), "memory.swap.max": "0", "cpu.max": "50000 100000", "pids.max": "9"}


def test_version_1_limits_what_tcp_buffers_as_well(tmp_path: Path) -> None:
    home = make_group(tmp_path / "home", "")
    tree = cgroup.CgroupTree(wanted=["memory"], hierarchies=({"memory": home}, None))
    found = []
    for number, megabytes in enumerate((32, 2048)):
        folder = tree.create(f"s{number}", SessionPolicy(memory_mb=megabytes)).folders["memory"]
        names = ("memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes")
        found.append([int((folder / name).read_text()) >> 20 for name in names])
    assert found == [[32, 32], [2048, 64]]


@pytest.mark.parametrize(("version", "file"), [(1, "memory.kmem.tcp.limit_in_bytes"), (2, "memory.swap.max")])
def test_a_limit_on_what_the_kernel_does_not_count_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, file: str
) -> None:
    """The file is missing then, and a control group's folder takes no new one."""
    home = make_group(tmp_path / "home", "memory", "memory")
    wanted = {"wanted": ["memory"], "hierarchies": ({"memory": home}, None) if version == 1 else ({}, home)}
    tree = cgroup.CgroupTree(**wanted)
    opened = os.open

    def open_known(path: Path, *more: int) -> int:
        if os.path.basename(path) == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, *more)

    monkeypatch.setattr(os, "open", open_known)
    folder = tree.create("s1", SessionPolicy()).folders["memory"]
    assert [path.name for path in folder.iterdir()] == ["memory.limit_in_bytes" if version == 1 else "memory.max"]


@pytest.mark.parametrize(("version", "file", "weight"), [(1, "cpu.shares", 1024), (2, "cpu.weight", 100)])
def test_sessions_weigh_as_one_process_per_core(tmp_path: Path, version: int, file: str, weight: int) -> None:
    home = make_group(tmp_path / "home", "cpu", "cpu")
    tree = cgroup.CgroupTree(wanted=["cpu"], hierarchies=({"cpu": home}, None) if version == 1 else ({}, home))
    assert int((home / tree.name / file).read_text()) == weight * (os.cpu_count() or 1)


def test_a_controller_that_is_not_there_is_named(tmp_path: Path) -> None:
    home = make_group(tmp_path / "home", "cpu", "cpu")
    tree = cgroup.CgroupTree(hierarchies=({}, home))
    assert tree.controllers == ("cpu",)
    assert set(tree.reasons) == {"memory", "pids"}
    assert "memory is not available" in tree.reasons["memory"]


def test_no_hierarchy_at_all() -> None:
    tree = cgroup.CgroupTree(hierarchies=({}, None))
    assert tree.controllers == ()
    assert all("no control group hierarchy has" in reason for reason in tree.reasons.values())


@pytest.mark.parametrize(
    ("events", "killed"), [("oom 1\noom_kill 1\n", True), ("oom 1\noom_kill 0\n", False), ("", False)]
)
def test_running_out_of_memory_is_read_off(tmp_path: Path, events: str, killed: bool) -> None:
    (tmp_path / "memory.events").write_text(events)
    (tmp_path / "memory.current").write_text("123\n")
    group = cgroup.Cgroup({"memory": tmp_path})
    assert group.ran_out_of_memory() is killed
    assert group.memory_bytes() == 123


def test_the_memory_of_ended_groups(tmp_path: Path) -> None:
    group = cgroup.Cgroup({"memory": tmp_path / "gone"})
    assert group.memory_bytes() is None
    assert group.ran_out_of_memory() is False
    assert group.remove() is True
