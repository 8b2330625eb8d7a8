"""What a resumed run finds of the one before, and what it leaves of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.loop.checkpoint_folder import CheckpointFolder
from agentcore_rl_toolkit.backends.loop.report import Report, keep_steps, run_totals
from agentcore_rl_toolkit.backends.settings import LoopSettings
from agentcore_rl_toolkit.client.evaluation import Outcome, summarize
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.types import Status


def checkpoint_folder(folder: Path, *, resume: bool = True) -> CheckpointFolder:
    return CheckpointFolder(folder, lambda path: (path / "trainer_state.json").is_file(), resume=resume)


def prepare(folder: Path, *, resume: bool = True) -> int | None:
    with checkpoint_folder(folder, resume=resume).opened() as start:
        return start


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that was killed while it made its second checkpoint."""
    for step in (2, 10):
        (tmp_path / "checkpoints" / f"checkpoint-{step}").mkdir(parents=True)
    (tmp_path / "checkpoints" / "checkpoint-2" / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoints" / "checkpoint-10" / "model.safetensors").write_text("half")
    (tmp_path / "rollouts").mkdir()
    for step in range(4):
        (tmp_path / "rollouts" / f"step-{step:06d}.jsonl").write_text("")
    lines = [json.dumps({"step": step, "seconds": 1.0, "rollouts/run": 8, "failures/timeout": 1}) for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 4, "sec')
    return tmp_path


def test_a_checkpoint_that_was_cut_off_is_none(folder: Path):
    assert prepare(folder) == 2
    assert not (folder / "checkpoints" / "checkpoint-10").exists()
    assert sorted(path.stem for path in (folder / "rollouts").iterdir()) == ["step-000000", "step-000001"]


def test_a_resumed_run_has_not_ended(folder: Path):
    (folder / "summary.json").write_text('{"interrupted": true}')
    prepare(folder)
    assert not (folder / "summary.json").exists()


def test_figures_go_on_from_the_checkpoint(folder: Path):
    report = Report(LoopSettings(output=str(folder)), quiet=True)
    report.resume(2)
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [1, 2]
    known = run_totals(report.steps, {}, 2)
    assert (known["rollouts"], known["failures"]) == (16, {"timeout": 2})


def test_an_evaluation_that_was_not_made_has_no_figure() -> None:
    outcomes = [Outcome("row", "session", Status.COMPLETED, reward, 1.0) for reward in (0.25, 0.75)]
    early, late = (summarize([outcome]) for outcome in outcomes)
    assert "before" not in run_totals([], {}, 3)
    only_before = run_totals([], {0: early}, 3)
    assert (only_before["before"], "after" in only_before) == (0.25, False)
    assert "after" not in run_totals([], {0: early, 2: late}, 3)
    assert "after" not in run_totals([], {0: early}, 0)
    assert run_totals([], {0: early, 3: late}, 3)["after"] == 0.75


def test_without_a_whole_checkpoint_everything_is_run_again(folder: Path):
    (folder / "checkpoints" / "checkpoint-2" / "trainer_state.json").unlink()
    assert prepare(folder) is None
    assert not (folder / "metrics.jsonl").exists()
    assert not (folder / "rollouts").exists()


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_a_second_run_takes_nothing_from_one_that_is_running(folder: Path, checkpoints: int):
    (folder / "checkpoints" / "checkpoint-2" / "trainer_state.json").unlink() if not checkpoints else None
    with checkpoint_folder(folder).opened():
        (folder / "checkpoints" / "checkpoint-10").mkdir()  # being written
        (folder / "rollouts").mkdir(exist_ok=True)
        (folder / "rollouts" / "step-000003.jsonl").write_text("")
        with pytest.raises(ConfigError, match=r"another run is writing to .*\nhint: wait for it"):
            prepare(folder)
        assert (folder / "checkpoints" / "checkpoint-10").exists()
        assert (folder / "rollouts" / "step-000003.jsonl").exists()
    assert prepare(folder) == (2 if checkpoints else None)
    assert not (folder / "rollouts" / "step-000003.jsonl").exists()


def test_the_other_processes_of_a_run_find_what_the_first_has_prepared(folder: Path):
    other = CheckpointFolder(folder, lambda path: (path / "trainer_state.json").is_file(), resume=True, first=False)
    with checkpoint_folder(folder).opened(), other.opened() as start:
        assert start == 2


def test_figures_with_a_broken_line_are_resumed(folder: Path):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[1:1] = ["\0\0\0", '{"step": 2, "sec', "{}"]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    assert [line["step"] for line in keep_steps(folder / "metrics.jsonl", 2)] == [1, 2]
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_rollouts_that_were_made_without_training_stay(tmp_path: Path):
    with RunWriter(tmp_path) as run:
        run.describe(kind="rollout")
        with run.part("rollout", 0) as part:
            pass
    with pytest.raises(ConfigError, match="has rollouts that were made without training"):
        prepare(tmp_path)
    assert part.path.exists()


def test_a_run_is_not_begun_over_another(folder: Path):
    with pytest.raises(ConfigError, match="has a run already"):
        prepare(folder, resume=False)
    assert (folder / "metrics.jsonl").exists()


def test_evaluations_up_to_the_checkpoint_stay(folder: Path) -> None:
    (folder / "evaluations").mkdir()
    for name in ("step-000000", "step-000002", "step-000003", "step-000002.process-1", "unfinished-step-000004"):
        (folder / "evaluations" / f"{name}.jsonl").write_text("")
    (folder / "rollouts" / "step-000002.process-1.jsonl").write_text("")
    prepare(folder)
    stay = {path.name for path in (folder / "evaluations").glob("step-*")}
    assert stay == {"step-000000.jsonl", "step-000002.jsonl", "step-000002.process-1.jsonl"}
    assert [path.stem for path in sorted((folder / "rollouts").iterdir())] == ["step-000000", "step-000001"]
    for process, steps in ((0, [0, 2]), (1, [2])):
        with RunWriter(folder, process=process) as writer:
            assert [step for step, _ in writer.evaluations()] == steps  # each process its own
