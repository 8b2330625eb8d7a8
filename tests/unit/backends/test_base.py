"""Finding backends, and showing a plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from agentcore_rl_toolkit.backends import base
from agentcore_rl_toolkit.backends.base import Backend, Plan, find, names, require
from agentcore_rl_toolkit.errors import ConfigError
from support.process import clean_env

ROOT = Path(__file__).parents[3]


def test_ours_are_entry_points_like_others() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][base.GROUP]
    assert names() == sorted(declared)
    for name in names():
        backend = find(name)
        assert isinstance(backend, Backend)
        assert backend.name == name
        assert backend.settings().options == {}


def test_a_backend_of_ones_own_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine-1.0.dist-info").mkdir()
    (tmp_path / "mine-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    entries = f"[{base.GROUP}]\nmine = mine:BACKEND\nbroken = mine:NOTHING\n"
    (tmp_path / "mine-1.0.dist-info" / "entry_points.txt").write_text(entries)
    (tmp_path / "mine.py").write_text(
        "from agentcore_rl_toolkit.backends.settings import TrainSettings\n"
        "class Mine:\n"
        "    name, extra, settings = 'mine', '', TrainSettings\n"
        "    def plan(self, settings): ...\n"
        "    def train(self, settings): return {'steps': settings.steps, 'interrupted': False}\n"
        "BACKEND, NOTHING = Mine(), 3\n"
    )
    (tmp_path / "rows.jsonl").write_text("{}\n")

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "train", "--backend", name, "a.py"]
        environment = clean_env(PYTHONPATH=str(tmp_path))
        return subprocess.run(
            [*command, "--data", "rows.jsonl", "--steps", "3"], capture_output=True, text=True, env=environment
        )

    done = run("mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"steps": 3, "interrupted": False}
    assert "mine:NOTHING of agentcore_rl.backends is no backend" in run("broken").stderr
    assert "did you mean mine?" in run("mime").stderr


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no backend named 'zzzz' is installed\nhint: there is: .*trl"):
        find("zzzz")


def test_what_is_missing_names_its_extra() -> None:
    with pytest.raises(ImportError, match=r"it needs no_such_trainer.*\nhint: pip install 'agentcore-rl-toolkit\[x\]'"):
        require("no_such_trainer", "x", "it")


def test_a_plan_is_what_a_shell_would_be_told(tmp_path: Path) -> None:
    plan = Plan(
        backend="b",
        settings={},
        command=("echo", "a b", "c"),
        environment={"X": "it's"},
        files={"f.yaml": "a: 1\nb: 2\n"},
        notes=("fine",),
    )
    assert plan.text().splitlines()[:4] == ["# fine", "# f.yaml", "#   a: 1", "#   b: 2"]
    done = subprocess.run(["bash", "-c", plan.text() + '\nprintf "%s" "$X"'], capture_output=True, text=True)
    assert done.stdout == "a b c\nit's"
