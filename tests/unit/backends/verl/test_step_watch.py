"""What the launcher does while verl runs: figures of finished steps, and guards that warn or end the program."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.base import TrainingPlan
from agentcore_rl_toolkit.backends.launch import run_trainer
from agentcore_rl_toolkit.backends.verl.backend import VerlSettings
from agentcore_rl_toolkit.backends.verl.figures import GroupWriter, StepWatch, run_figures
from agentcore_rl_toolkit.errors import RolloutsStopped
from agentcore_rl_toolkit.rollout.run_folder import RunWriter, open_run
from agentcore_rl_toolkit.studio.guards.guards import FILE, read_findings
from support.process import clean_env
from support.rollouts import make_group, make_rollout, make_row


@pytest.fixture
def settings(tmp_path: Path) -> VerlSettings:
    for name, questions in (("train", range(8)), ("held-out", range(7, 9))):
        rows = "".join(json.dumps({"prompt": f"{name if n < 7 else 'shared'} {n}"}) + "\n" for n in questions)
        (tmp_path / f"{name}.jsonl").write_text(rows)
    known: dict[str, Any] = {"data": str(tmp_path / "train.jsonl"), "eval_data": str(tmp_path / "held-out.jsonl")}
    return VerlSettings(agent="rl_app.py", output=str(tmp_path / "run"), steps=4, **known)


def write_step(folder: Path, step: int, *, workers: int = 2) -> None:
    """A step of verl in which every rollout has reward 1, of eight groups and two workers."""
    for worker in range(workers):
        with RunWriter(folder, process=worker) as run, closing(GroupWriter(folder, worker, 0.0)) as figures:
            part = run.shared_part("train", step - 1)
            for group in range(4):
                name = f"{step}-{worker}-{group}"
                samples = [
                    replace(
                        make_rollout(1.0, make_row([1], [2]), input_id=name, session_id=f"{name}-{n}", sample=n),
                        payload={"prompt": f"train {group}"},
                    )
                    for n in range(2)
                ]
                for one in samples:
                    part.write(one)
                figures.add_group(step, make_group(*samples), samples)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_step_is_judged_when_a_later_one_has_begun(settings: VerlSettings) -> None:
    folder = settings.folder
    write_step(folder, 1)
    write_step(folder, 2)
    StepWatch(settings).finish()
    assert [(line["step"], line["reward"], line["rollouts/run"]) for line in lines(folder)] == [
        (1, 1.0, 16),
        (2, 1.0, 16),
    ]
    found = {one["guard"]: one for one in read_findings(folder / FILE)}
    assert found["constant_reward"]["step"] == 2
    assert found["constant_reward"]["action"] == "warn"
    example = open_run(folder).rollout(open_run(folder).find(found["constant_reward"]["example"]))
    assert example.reward == 1.0
    assert lines(folder)[1]["guard/constant_reward"] == 1.0
    assert "1 of 2 held-out rows" in found["held_out_rows_trained"]["problem"]
    run_figures(settings, settings.checkpoints)
    assert lines(folder)[1]["guard/constant_reward"] == 1.0, "the figures at the end keep what was judged"


def test_a_resumed_run_judges_only_what_is_new(settings: VerlSettings) -> None:
    write_step(settings.folder, 1)
    write_step(settings.folder, 2)
    StepWatch(settings).finish()
    before = read_findings(settings.folder / FILE)
    write_step(settings.folder, 3)
    StepWatch(settings).finish()
    assert read_findings(settings.folder / FILE) == before
    assert [line["step"] for line in lines(settings.folder)] == [1, 2, 3]


def test_a_guard_ends_the_program(settings: VerlSettings) -> None:
    """The program writes three steps and would go on for ten minutes."""
    program = (
        "import sys, time\nfrom pathlib import Path\nsys.path[:0] = sys.argv[2].split(':')\n"
        "from unit.backends.verl.test_step_watch import write_step\n"
        "for step in (1, 2, 3):\n    write_step(Path(sys.argv[1]), step)\n"
        "time.sleep(600)\n"
    )
    tests = Path(__file__).parents[3]
    command = (sys.executable, "-c", program, str(settings.folder), f"{tests}")
    plan = TrainingPlan(backend="verl", settings={}, command=command, environment=clean_env())
    stopping = replace(settings, guard={"constant_reward": "stop"})
    with StepWatch(stopping, every=0.05) as watch, pytest.raises(RolloutsStopped, match="have reward 1"):
        run_trainer(plan, settings.folder, "verl", problem=lambda: watch.problem)
    assert [line["step"] for line in lines(settings.folder)][:2] == [1, 2]
    assert json.loads((settings.folder / "summary.json").read_text())["interrupted"]
    assert read_findings(settings.folder / FILE)[-1]["action"] == "stop"


def test_a_worker_ends_the_program(settings: VerlSettings) -> None:
    """verl would take another prompt, and another."""
    program = (
        "import sys, time\nfrom pathlib import Path\nsys.path[:0] = sys.argv[2].split(':')\n"
        "from agentcore_rl_toolkit.backends.verl.figures import GroupWriter\n"
        "from agentcore_rl_toolkit.errors import RolloutsStopped\n"
        "GroupWriter(Path(sys.argv[1]), 0, 0.0).write_totals({}, RolloutsStopped('it is over', hint='start again'))\n"
        "time.sleep(600)\n"
    )
    command = (sys.executable, "-c", program, str(settings.folder), f"{Path(__file__).parents[3]}")
    plan = TrainingPlan(backend="verl", settings={}, command=command, environment=clean_env())
    with (
        StepWatch(settings, every=0.05) as watch,
        pytest.raises(RolloutsStopped, match=r"^it is over\nhint: start again$"),
    ):
        run_trainer(plan, settings.folder, "verl", problem=lambda: watch.problem)
