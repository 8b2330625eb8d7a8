"""What the page and the terminal say about a run's steps, groups and rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit.gateway.record.conversation import Transcript
from agentcore_rl_toolkit.rollout import Rollout
from agentcore_rl_toolkit.rollout.run_folder import RunWriter, open_run
from agentcore_rl_toolkit.studio import run_queries
from agentcore_rl_toolkit.studio.rollout_diff import diff_rollouts
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_rollout


def sample(row: str, number: int, reward: float | None, **more: Any) -> Rollout:
    return make_rollout(reward, input_id=row, sample=number, session_id=f"{row}/{number}/{id(more)}", **more)


def write(folder: Path, phase: str, step: int, *rollouts: Rollout) -> None:
    with RunWriter(folder) as run, run.part(phase, step) as part:
        for one in rollouts:
            part.write(one)


def test_figures_of_a_step(tmp_path: Path) -> None:
    lost = failed(Status.SESSION_LOST, group=1, session_id="lost", input_id="b")
    write(tmp_path, "train", 0, sample("a", 0, 1.0, group=0), sample("a", 1, 0.0, group=0), lost)
    late = failed(Status.TIMEOUT, input_id="y", session_id="y")
    unjudged = failed(Status.REWARD_ERROR, input_id="z", session_id="z")
    write(tmp_path, "before", 0, sample("x", 0, 1.0), late, lost, unjudged)
    before, train = sorted(run_queries.read_steps(open_run(tmp_path)), key=lambda one: str(one["phase"]))
    assert (train["rollouts"], train["failed"], train["groups"], train["trained_on"]) == (3, 1, 2, 2)
    assert train["statuses"] == {"completed": 2, "session_lost": 1}
    assert (train["reward"], train["interval"], train["fidelity"]) == (0.5, None, 1.0)
    assert before["trained_on"] == 0
    assert before["reward"] == 0.5, "the agent's own failure counts as 0; a lost session and a reward error not at all"


def test_groups_of_a_step(tmp_path: Path) -> None:
    rollouts = [sample("a", 1, 0.0, group=0), sample("b", 0, None, group=10), sample("a", 0, 1.0, group=0)]
    write(tmp_path, "train", 0, *rollouts, sample("c", 0, 0.5, group=2))
    groups = run_queries.read_groups(open_run(tmp_path), "train", 0)
    assert [(one["group"], one["mean"], one["spread"]) for one in groups] == [
        (0, 0.5, 0.5),
        (2, 0.5, 0.0),
        (10, None, None),
    ]
    assert [entry["reward"] for entry in groups[0]["samples"]] == [1.0, 0.0]


def test_what_became_of_rows(tmp_path: Path) -> None:
    """A row without its own id begins with its place in the step, which differs from step to step."""
    rewards = {"1111aaaa": (0, 1), "2222bbbb": (1, 0), "3333cccc": (1, 1), "4444dddd": (0, 0.25)}
    for step in (0, 1):
        made = [sample(f"{9 * step + at:06d}-{row}", 0, float(r[step])) for at, (row, r) in enumerate(rewards.items())]
        write(tmp_path, "train", step, *made)
    run = open_run(tmp_path)
    changes = {one["row"]: one["change"] for one in run_queries.read_rows(run)}
    assert changes == {"1111aaaa": "learned", "2222bbbb": "forgotten", "3333cccc": "always", "4444dddd": "never"}
    assert [run.entry(at).step for at in run_queries.visits_of_row(run, "2222bbbb").tolist()] == [0, 1]


def test_an_empty_run_has_no_steps(tmp_path: Path) -> None:
    with RunWriter(tmp_path):
        run = open_run(tmp_path)
    assert run_queries.read_steps(run) == run_queries.read_rows(run) == []


def test_two_rollouts_side_by_side() -> None:
    left, right = (replace(make_rollout(), transcript=Transcript.from_fields(fields(answer))) for answer in ("4", "5"))
    pairs = diff_rollouts(left, right)
    assert [(pair["same"], pair["before"]["content"], pair["after"]["content"]) for pair in pairs] == [
        (True, "2 + 2?", "2 + 2?"),
        (False, "4", "5"),
    ]
    assert diff_rollouts(left, make_rollout())[0]["after"] is None


def fields(answer: str) -> dict[str, Any]:
    turn = {"turn": 0, "before": None, "messages": [0], "tools": [], "started": 0.0, "seconds": 1.0, "waited": 0.0}
    turn |= {"prompt_tokens": 1, "sampled_tokens": 1, "finish": "stop", "origin": "root", "unbridged": ""}
    turn |= {"masked": None, "versions": [], "parse_failures": 0}
    turn |= {"reply": {"content": answer, "reasoning": "", "tool_calls": []}}
    return {"messages": [{"role": "user", "content": "2 + 2?"}], "turns": [turn], "left_out": 0}
