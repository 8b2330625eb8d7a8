"""Figures reach W&B, MLflow, TensorBoard and trackio, and none of them can end a run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentcore_rl_toolkit.common.trackers import open_trackers

FIGURES = {"reward": 0.5, "guard/constant_reward": 1, "dropped/no variance?": 2, "why": "text", "none": None}
NUMBERS = {"reward": 0.5, "guard/constant_reward": 1.0, "dropped/no variance?": 2.0}
ABOUT = {"agent": "rl_app.py", "steps": 3}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Packages that note how they are called: the real ones would need accounts, servers or hundreds of megabytes."""
    called: list[tuple[Any, ...]] = []

    def note(name: str, function: str) -> Any:
        return lambda *args, **named: called.append((f"{name}.{function}", *args, *named.values()))

    functions = {
        "wandb": ("init", "log", "finish"),
        "trackio": ("init", "log", "finish"),
        "mlflow": ("set_experiment", "start_run", "log_params", "log_metrics", "end_run"),
    }
    for name, its in functions.items():
        package = ModuleType(name)
        for function in its:
            setattr(package, function, note(name, function))
        monkeypatch.setitem(sys.modules, name, package)
    for variable in ("WANDB_PROJECT", "TRACKIO_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(variable, raising=False)
    return called


def test_every_step_is_sent_to_each(calls: list[tuple[Any, ...]], tmp_path: Path) -> None:
    with open_trackers("wandb, mlflow,trackio", tmp_path / "run-1", ABOUT) as track:
        track(1, FIGURES)
    mlflow = {name.replace("?", "_"): value for name, value in NUMBERS.items()}
    assert calls == [
        ("wandb.init", "agentcore-rl", "run-1", ABOUT),
        ("mlflow.set_experiment", "agentcore-rl"),
        ("mlflow.start_run", "run-1"),
        ("mlflow.log_params", {"agent": "rl_app.py", "steps": "3"}),
        ("trackio.init", "agentcore-rl", "run-1", ABOUT),
        ("wandb.log", NUMBERS, 1),
        ("mlflow.log_metrics", mlflow, 1),
        ("trackio.log", NUMBERS, 1),
        ("wandb.finish",),
        ("mlflow.end_run",),
        ("trackio.finish",),
    ]


def test_none_sends_nothing(calls: list[tuple[Any, ...]], tmp_path: Path) -> None:
    with open_trackers("none", tmp_path, ABOUT) as track:
        track(1, FIGURES)
    assert calls == []


def test_one_that_fails_is_left_out_and_the_others_go_on(
    calls: list[tuple[Any, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no network")

    monkeypatch.setattr(sys.modules["wandb"], "log", fail, raising=False)
    monkeypatch.setattr(sys.modules["trackio"], "init", lambda **_: sys.stdout.write("hello"), raising=False)
    with open_trackers("wandb,trackio,nowhere", tmp_path, ABOUT) as track:
        track(1, FIGURES)
        track(2, FIGURES)
    assert [call[0] for call in calls if call[0] in ("trackio.log", "wandb.finish")] == ["trackio.log"] * 2
    assert [line.getMessage() for line in caplog.records] == [
        "no figures go to nowhere any more: KeyError: 'nowhere'",
        "no figures go to wandb any more: RuntimeError: no network",
    ]
    assert capsys.readouterr().out == ""


def test_tensorboards_own_reader_finds_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_trackers("tensorboard", tmp_path, ABOUT) as track:
        for step in (1, 2):
            track(step, {"reward": step / 4})
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in found.Scalars("reward")] == [(1, 0.25), (2, 0.5)]
