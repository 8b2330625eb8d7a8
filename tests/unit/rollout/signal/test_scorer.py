"""Rewards of complete groups: in one place, after the rollouts and before they are compared."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import ConfigError, JudgeFault, RolloutsStopped
from agentcore_rl_toolkit.rollout import Action, Group, Judge, Rollout, run_rollouts
from agentcore_rl_toolkit.rollout.signal.scorer import Scorer
from agentcore_rl_toolkit.types import Status
from support.gateway import gateway, ids
from support.own_runtime import OwnRuntime
from support.process import clean_env


async def asks_once(payload: dict[str, Any]) -> bytes:
    """An agent that makes one model call and returns no reward."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": payload["prompt"]}]}
    url = payload["_rollout"]["base_url"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def ask() -> str:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return str(json.load(reply)["choices"][0]["message"]["content"])

    said = await asyncio.to_thread(ask)
    return json.dumps({"status_code": 200, "response": said}).encode()


def run(folder: Path, score: Any, *, rows: int = 1, n: int = 3, **options: Any) -> tuple[list[Group], list[Rollout]]:
    """The groups of an agent that says a, aa, aaa …, and every rollout that was reported."""
    said = iter("a" * length for length in range(1, 100))
    reported: list[Rollout] = []
    engine = ScriptedEngine(lambda request: ids(next(said)))
    with RolloutClient(OwnRuntime(asks_once), folder, "exp") as client, gateway(engine) as running:
        groups = list(
            run_rollouts(
                [{"prompt": f"hi {i}", "answer": "aa"} for i in range(rows)],
                n,
                client=client,
                gateway=running,
                on_rollout=reported.append,
                score=Scorer(score),
                keep_dropped=True,
                max_concurrent_sessions=1,
                **options,
            )
        )
    return groups, reported


def longest(responses: Sequence[str], prompt: str) -> list[float]:
    assert prompt.startswith("hi")
    return [float(len(text) == max(map(len, responses))) for text in responses]


def test_a_group_is_ranked_when_it_is_complete(tmp_path: Path) -> None:
    (first, second), reported = run(tmp_path, longest, rows=2)
    for group in (first, second):
        assert group.dropped is None
        assert group.rewards == [0.0, 0.0, 1.0]
        assert {one.status for one in group.rollouts} == {Status.COMPLETED}
    assert [one.reward for one in reported] == [0.0, 0.0, 1.0] * 2, "each once, with its reward"
    assert [one.result["response"] for one in first.rollouts if one.result] == ["a", "aa", "aaa"]


def test_a_reward_of_one_rollout_is_called_for_each(tmp_path: Path) -> None:
    def exact(response_text: str, ground_truth: str) -> float:
        return float(response_text == ground_truth)

    ((group,), _) = run(tmp_path, exact)
    assert group.rewards == [0.0, 1.0, 0.0]


def test_a_judge_that_fails_is_a_reward_error_and_no_zero(tmp_path: Path) -> None:
    def fails_once(response_text: str) -> float:
        if response_text == "aa":
            raise JudgeFault("the judge openai:x: HTTP 500")
        return float(len(response_text))

    ((group,), reported) = run(tmp_path, fails_once)
    assert group.rewards == [1.0, 3.0]
    (broken,) = [one for one in group.rollouts if not one.trained]
    assert (broken.status, broken.action, broken.rewards) == (Status.REWARD_ERROR, Action.MASK, None)
    assert broken.error == "JudgeFault: the judge openai:x: HTTP 500"
    assert len(reported) == 3
    assert broken in reported


@pytest.mark.parametrize("given", [[1.0], 1.0, [1.0, 2.0, "three"]])
def test_a_group_reward_of_another_form_is_an_error_of_all(tmp_path: Path, given: Any) -> None:
    ((group,), _) = run(tmp_path, lambda rollouts: given)
    assert group.dropped == "too few to compare"
    assert {one.status for one in group.rollouts} == {Status.REWARD_ERROR}


def test_no_reward_is_not_trained_on(tmp_path: Path) -> None:
    ((group,), _) = run(tmp_path, lambda responses: [None, 1.0, 0.0])
    assert [one.why for one in group.rollouts] == ["no reward", None, None]


def test_a_judge_that_is_down_ends_the_run(tmp_path: Path) -> None:
    def down(responses: Sequence[str]) -> list[float]:
        raise JudgeFault("nobody listens")

    with pytest.raises(RolloutsStopped, match=r"5 rollouts in a row.*nobody listens"):
        run(tmp_path, down, rows=3, max_failures=5)


def test_a_setting_that_is_missing_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the reward function needs rubric"):
        run(tmp_path, lambda response_text, rubric: 1.0)


def test_a_reward_that_exits_fails_alone(tmp_path: Path) -> None:
    ((group,), _) = run(tmp_path, lambda response_text: sys.exit(3) if response_text == "a" else 1.0)
    assert [(one.status, one.error) for one in group.rollouts if not one.trained] == [
        (Status.REWARD_ERROR, "RewardInvalid: the reward raised SystemExit: 3")
    ]


HANGS = """
import asyncio, threading
from agentcore_rl_toolkit.rollout import Judge
from agentcore_rl_toolkit.rollout.signal.scorer import Scorer
from support.rollouts import make_group, make_rollout, make_row

group = make_group(*[make_rollout(0.0, make_row(), sample=sample) for sample in range(2)])
called = threading.Event()

def never(response_text=None):
    called.set()
    threading.Event().wait()

async def interrupted():
    scoring = asyncio.create_task(Scorer(never).score_group(group, Judge()))
    await asyncio.to_thread(called.wait)
    scoring.cancel()

asyncio.run(interrupted())
print("ended")
"""


def test_a_reward_that_never_returns_does_not_keep_the_process() -> None:
    environment = clean_env() | {"PYTHONPATH": str(Path(__file__).parents[3])}
    ended = subprocess.run([sys.executable, "-c", HANGS], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "ended\n", ended.stderr


def test_what_fails_by_the_table_stops_or_is_masked(tmp_path: Path) -> None:
    def fails(response_text: str) -> float:
        raise ValueError("no")

    refill = Judge(table={**Judge().table, Status.REWARD_ERROR: Action.REFILL})
    ((group,), _) = run(tmp_path, fails, judge=refill)
    assert {one.action for one in group.rollouts} == {Action.MASK}, "it is too late for another"
    stop = Judge(table={**Judge().table, Status.REWARD_ERROR: Action.STOP})
    with pytest.raises(RolloutsStopped, match="stops the run at reward_error"):
        run(tmp_path / "again", fails, judge=stop)


def test_evaluations_are_not_ranked(tmp_path: Path) -> None:
    ((group,), _) = run(tmp_path, longest, evaluation=True)
    assert [one.why for one in group.rollouts] == ["no reward"] * 3

    def length(response_text: str) -> float:
        return float(len(response_text))

    ((group,), _) = run(tmp_path / "again", length, evaluation=True)
    assert group.rewards == [1.0, 2.0, 3.0]
