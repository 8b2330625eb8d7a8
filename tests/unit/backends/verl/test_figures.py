"""A verl run in figures, from the lines that workers write."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.verl.backend import VerlSettings
from agentcore_rl_toolkit.backends.verl.figures import GroupWriter, remove_stale_files, run_figures
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_group, make_rollout, make_row


def saved(checkpoints: Path, step: int) -> Path:
    """As verl leaves a checkpoint behind."""
    weights = checkpoints / f"global_step_{step}" / "actor" / "huggingface"
    weights.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (weights / name).write_text("{}")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))
    return weights


@pytest.fixture
def settings(tmp_path: Path) -> VerlSettings:
    return VerlSettings(agent="rl_app.py", output=str(tmp_path), steps=2)


def write(folder: Path, worker: int = 0) -> None:
    """Two steps, the second with a group that verl didn't get, and held-out rows before and after."""
    good, bad = make_rollout(1.0, make_row([1], [2])), make_rollout(0.0, make_row([1], [3]))
    broken = failed(Status.AGENT_ERROR)
    with closing(GroupWriter(folder, worker, failed_reward=0.0)) as writer:
        writer.add_validation(0, make_group(bad))
        writer.add_group(1, make_group(good, bad, bad), [good, bad, bad])
        writer.add_group(1, make_group(good), [good])
        writer.add_group(2, make_group(good, bad), [good, bad])
        writer.add_group(2, make_group(good, broken), [])
        writer.add_validation(2, make_group(good, broken))


def test_the_summary_has_every_backends_figures(settings: VerlSettings, tmp_path: Path) -> None:
    write(tmp_path)
    weights = saved(settings.checkpoints, 2)
    found = run_figures(settings, settings.checkpoints)
    assert (found["steps"], found["rollouts"], found["trained"]) == (2, 8, 6)
    assert found["failures"] == {"agent_error": 1}
    assert found["reward"] == [0.5, 0.5]  # over rollouts, not over groups
    assert (found["before"], found["after"]) == (0.0, 0.5)
    assert found["checkpoint"] == str(weights)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["rollouts/run"]) for line in lines] == [(1, 4), (2, 4)]


def test_a_judges_error_is_not_a_zero(settings: VerlSettings, tmp_path: Path) -> None:
    with closing(GroupWriter(tmp_path, 0, failed_reward=0.0)) as writer:
        writer.add_validation(0, make_group(make_rollout(1.0), failed(Status.REWARD_ERROR)))
    assert run_figures(settings, settings.checkpoints)["before"] == 1.0


def test_workers_are_added_up(settings: VerlSettings, tmp_path: Path) -> None:
    write(tmp_path, 0)
    write(tmp_path, 1)
    with (tmp_path / "groups" / "worker-1.jsonl").open("a") as file:
        file.write('{"step": 3, "met')  # cut off by a kill
    found = run_figures(settings, settings.checkpoints)
    assert (found["rollouts"], found["trained"], found["reward"]) == (16, 12, [0.5, 0.5])
    assert found["checkpoint"] is None


def test_a_run_that_never_sampled_has_no_figures(settings: VerlSettings, tmp_path: Path) -> None:
    found = run_figures(settings, settings.checkpoints)
    assert (found["steps"], found["rollouts"], found["reward"]) == (0, 0, [])
    assert not (tmp_path / "metrics.jsonl").exists()


def test_steps_that_a_resumed_run_repeats_count_once(settings: VerlSettings, tmp_path: Path) -> None:
    write(tmp_path)
    with closing(GroupWriter(tmp_path, 0, failed_reward=0.0)) as writer:
        writer.add_validation(1, make_group(make_rollout(1.0, make_row([1], [2]))))
    saved(settings.checkpoints, 1)
    remove_stale_files(tmp_path, settings.checkpoints, resumes=True)
    found = run_figures(settings, settings.checkpoints)
    assert (found["steps"], found["rollouts"], found["before"]) == (1, 4, 0.0)
    assert "after" not in found  # verl runs held-out rows again when it resumes


def test_a_new_run_starts_without_an_earlier_ones_files(settings: VerlSettings, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "worker-0.jsonl").write_text("")
    remove_stale_files(tmp_path, settings.checkpoints, resumes=True)  # it was ended before its first checkpoint
    assert not list(tmp_path.glob("*/worker-0.jsonl"))
