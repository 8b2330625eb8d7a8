"""Backends as people install them: what each extra asks for is to be had, and what is missing is named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from agentcore_rl_toolkit.backends.base import find, names
from support.process import clean_env

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TRAINERS = {"trl": "trl", "verl": "verl", "slime": "msgspec", "rllm": "pandas", "tinker": "tinker"}
TRAINERS |= {"sagemaker-session": "numpy", "sagemaker": "boto3"}
"""What each backend can't do without: its trainer, or of those that are no packages, what its own side needs."""
NEEDS_IT_LATER = ("rllm", "sagemaker")
"""Backends that import what they need when they are called."""
WITHOUT = """\
import importlib, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == sys.argv[2]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
package = importlib.import_module("agentcore_rl_toolkit.backends." + sys.argv[1].replace("-", "."))
extra = sys.argv[1].partition("-")[0]
for name in package.__all__:
    try:
        getattr(package, name)
        print(name, "is there")
    except ImportError as error:
        print(name, "names its extra" if f"agentcore-rl-toolkit[{extra}]'" in str(error) else repr(error))
"""


def pins() -> dict[str, set[str]]:
    """Versions that tests have been run with, of everything."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "constraints.txt", *ROOT.glob("tests/real_*/requirements.txt")):
        for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([\w.]+)", path.read_text(), re.MULTILINE):
            found.setdefault(_plain(name), set()).add(version)
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_an_extra_asks_for_is_tested_with(extra: str) -> None:
    known = pins()
    for wanted in map(Requirement, EXTRAS[extra]):
        if _plain(wanted.name) == "agentcore-rl-toolkit":
            assert wanted.extras <= EXTRAS.keys()
        else:
            versions = known.get(_plain(wanted.name), set())
            assert any(version in wanted.specifier for version in versions), f"{wanted}: {versions or 'no pin'}"


def test_every_backend_has_its_extra() -> None:
    assert set(names()) == TRAINERS.keys()
    for name in names():
        assert find(name).extra in EXTRAS


@pytest.mark.parametrize("name", TRAINERS)
def test_without_its_trainer_a_backend_says_what_to_install(name: str) -> None:
    command = [sys.executable, "-c", WITHOUT, name, TRAINERS[name]]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_env())
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(said.values()) <= {"is there", "names its extra"}, said
    assert "names its extra" in said.values() or name in NEEDS_IT_LATER
    settings = "TrainingSessionSettings" if name == "sagemaker-session" else f"{name.capitalize()}Settings"
    assert said[settings] == "is there"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
