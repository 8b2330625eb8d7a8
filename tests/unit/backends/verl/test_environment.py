"""Overrides for a machine with few cores."""

from __future__ import annotations

import doctest
import os
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.verl import environment
from agentcore_rl_toolkit.backends.verl.backend import VerlSettings
from agentcore_rl_toolkit.backends.verl.environment import CPUS, UNITS, claimed_cpus, fit_cores, starts_ray
from agentcore_rl_toolkit.backends.verl.overrides import run_overrides


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with two cores, and no Ray on it."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))


def told(**changes: Any) -> dict[str, str]:
    settings = VerlSettings(agent="rl_app.py", data="rows.jsonl", **changes)
    pairs = (override.partition("=") for override in run_overrides(settings))
    return {key: value for key, _, value in pairs if key in (UNITS, CPUS)}


def test_the_examples_hold() -> None:
    found = doctest.testmod(environment)
    assert (found.failed, found.attempted) == (0, 2)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_every_claim_fits(gpus: int) -> None:
    for cores in range(1, 64):
        known = fit_cores(gpus, cores)
        assert known.get(CPUS, cores) >= claimed_cpus(gpus, known.get(UNITS, 8)), "or Ray would wait for ever"
        assert known.get(CPUS, cores) >= cores
    assert fit_cores(gpus, claimed_cpus(gpus)) == {}, "verl's own, where that is possible"
    assert fit_cores(gpus, None) == {}


@pytest.mark.usefixtures("few")
def test_a_run_on_few_cores_starts() -> None:
    assert told() == {UNITS: "2", CPUS: "7"}
    assert told(gpus=2)[CPUS] == "10"


@pytest.mark.usefixtures("few")
def test_options_have_the_last_word() -> None:
    assert told(options={UNITS: 1}) == {UNITS: "1", CPUS: "6"}
    assert told(options={f"++{UNITS}": 8, CPUS: 64})[CPUS] == "64"


@pytest.mark.usefixtures("few")
def test_a_cluster_is_somebody_elses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert told(nodes=2) == {}
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert told() == {}
    monkeypatch.delenv("RAY_ADDRESS")
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
    assert told() == {}


def test_where_ray_says_that_it_runs(tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
    assert not starts_ray({"TMPDIR": str(tmp_path)})
    assert starts_ray({"TMPDIR": str(tmp_path), "RAY_TMPDIR": str(tmp_path / "other")})
