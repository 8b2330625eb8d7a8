"""A hostile agent in a runtime that root did not start: sessions then own what its user owns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.ordinary_user import run_as_ordinary_user
from support.runtime import needs_sandbox

pytestmark = needs_sandbox

AGENT = """
import ctypes, os
from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()

def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__

def write(path):
    with open(path, "w") as file:
        file.write("from another session")

def count(kind):
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.readlink(name).startswith(kind) for name in names if os.path.lexists(name))

def view():
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
    return {
        "dev": sorted(os.listdir("/dev")),
        "covered": [open(path).read() for path in ("/.large/0/.env", "/app/data/.env")],
        "rights": [status[name].strip() for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")],
        "sockets": count("socket:"),
    }

AT_IMPORT = view()

@app.rollout_entrypoint
def invoke_agent(payload):
    before = view()
    tries = {}
    for path in ("/dev/left-behind", "/.large/0/.env", "/app/data/.env", "/.empty", "/etc/passwd", "/proc/1/mem"):
        tries[f"chmod {path}"] = attempt(lambda: os.chmod(path, 0o666))
        tries[f"write {path}"] = attempt(lambda: write(path))
    tries["unlink /dev/fd"] = attempt(lambda: os.unlink("/dev/fd"))
    for path in ("/proc/1/fd/1", "/proc/1/root", "/proc/1/exe"):
        tries[f"follow {path}"] = attempt(lambda: os.readlink(path))
    for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/maps"):
        tries[f"read {path}"] = attempt(lambda: open(path, "rb").read(1))
    libc = ctypes.CDLL(None)
    while (descriptor := libc.inotify_init()) >= 0:
        WATCHES.append(descriptor)
    return {"tries": tries, "before": before, "at_import": AT_IMPORT}

WATCHES = []
"""

SCRIPT = """
import ctypes, json, os, uuid
from agentcore_rl_toolkit.runtime.local import LocalRuntime
assert os.geteuid() != 0
with LocalRuntime({folder!r}, spares=0) as runtime:
    answers = [json.loads(runtime.invoke(str(uuid.uuid4()), b"{{}}")) for _ in range(2)]
    print(json.dumps([*answers, ctypes.CDLL(None).inotify_init() >= 0]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Of two sessions, each of which tries the same; and whether their user can still watch a folder."""
    folder: Path = tmp_path_factory.mktemp("agent")
    (folder / "rl_app.py").write_text(AGENT)
    (folder / "data").mkdir()
    (folder / "data/.env").write_text("SECRET=1")
    for number in range(330):  # so that their folder is shown itself, with its secrets covered
        (folder / f"data/{number}.bin").touch()
        os.truncate(folder / f"data/{number}.bin", 1 << 20)
    done = run_as_ordinary_user(SCRIPT.format(folder=str(folder)))
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout)
    return found


def test_nothing_that_sessions_share_can_be_written(answers: list[Any]) -> None:
    first, second, _ = answers
    assert "done" not in first["tries"].values(), first["tries"]
    assert second["before"] == first["before"]
    assert first["before"]["covered"] == ["", ""]


def test_a_session_has_the_rights_and_descriptors_of_any_other(answers: list[Any]) -> None:
    for answer in answers[:2]:
        for found in (answer["before"], answer["at_import"]):
            assert found["rights"] == ["0000000000000000"] * 2 + ["1", "2"]
        assert answer["at_import"]["sockets"] == 1  # the one it will serve on


def test_sessions_leave_their_user_the_means_to_watch_folders(answers: list[Any]) -> None:
    assert answers[2]
