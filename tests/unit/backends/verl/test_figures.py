"""A verl run in figures, from the lines that workers write."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.verl.backend import VerlSettings
from agentcore_rl_toolkit.backends.verl.figures import GroupWriter, check_trained, remove_stale_files, run_figures
from agentcore_rl_toolkit.deploy.capacity import Workload, cost_of_usage
from agentcore_rl_toolkit.errors import RolloutsStopped
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


def test_what_workers_used_and_could_not_train_on_is_added_up(settings: VerlSettings, tmp_path: Path) -> None:
    known: dict[str, Any] = {"session_seconds": 1800.0, "store_requests": {"s3:GetObject": 4}}
    for worker in (0, 1):
        with closing(GroupWriter(tmp_path, worker, failed_reward=0.0)) as writer:
            for sessions in (2, 5):
                writer.add_group(1, make_group(failed(), failed(Status.TRUNCATED)), [])
                writer.write_totals({"sessions": sessions, **known}, None)  # the latest ones count
    found = run_figures(settings, settings.checkpoints)
    assert found["used"] == {"sessions": 10, "session_seconds": 3600.0, "store_requests": {"s3:GetObject": 8}}
    assert cost_of_usage(found["used"], Workload(session_gb=2))["runtime_memory"] == pytest.approx(2 * 0.00945)
    assert found["not_trained_on"] == [
        {"cause": "agent_error: it broke", "rollouts": 4},
        {"cause": "truncated: it broke", "rollouts": 4},
    ]
    remove_stale_files(tmp_path, settings.checkpoints, resumes=True)
    assert run_figures(settings, settings.checkpoints)["used"] == {}


@pytest.mark.parametrize(("dropped", "most"), [("too few to compare", 6), ("no variance", 60)])
def test_groups_that_give_nothing_to_train_on_end_a_run(tmp_path: Path, dropped: str, most: int) -> None:
    good, cut = make_rollout(1.0), failed(Status.TRUNCATED, error=None)
    with closing(GroupWriter(tmp_path, 0, failed_reward=0.0)) as writer:

        def add(times: int) -> None:
            for _ in range(times):
                writer.add_group(1, make_group(cut, cut, dropped=dropped), [])
                writer.check_progress(rows=2)

        add(most - 1)
        writer.add_group(1, make_group(good, good), [good, good])
        add(most - 1)
        with pytest.raises(RolloutsStopped, match=rf"in {most} groups in a row.*\n.* × truncated\n.*(\n.*)*max_tokens"):
            add(1)


def test_a_run_that_trained_on_nothing_has_failed_and_says_what_of(settings: VerlSettings, tmp_path: Path) -> None:
    with closing(GroupWriter(tmp_path, 0, failed_reward=0.0)) as writer:
        writer.add_group(1, make_group(failed(), failed()), [])
        writer.write_totals({}, None)
    summary = {"interrupted": False, **run_figures(settings, settings.checkpoints)}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(
        RolloutsStopped, match=r"verl has ended, and nothing could be trained on(.*\n)*.*2 × agent_error"
    ):
        check_trained(settings, "verl has ended")
    for fine in ({"interrupted": True}, {"trained": 2}, {"rollouts": 0}):
        (tmp_path / "summary.json").write_text(json.dumps(summary | fine))
        check_trained(settings, "verl has ended")


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
