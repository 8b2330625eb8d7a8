"""Another reward for rollouts that were run already."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RewardFunction
from agentcore_rl_toolkit.errors import ConfigError, RewardInvalid
from agentcore_rl_toolkit.rollout import Action, Rollout
from agentcore_rl_toolkit.rollout.rollout import NOTHING
from agentcore_rl_toolkit.rollout.signal.rescore import load_reward, rescore
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_rollout

# What a reward function is called with


def test_it_gets_what_it_asks_for_by_name() -> None:
    asked: dict[str, Any] = {}

    def score(*, response_text: str, ground_truth: str, prompt: str, payload: Any, result: Any, rollout: Any) -> float:
        asked.update(locals())
        return 0.25

    rollout = make_rollout(1.0, payload={"prompt": "2 + 2?", "answer": "4"}, result={"response": "four", "x": 1})
    again = rescore(rollout, score)
    assert (again.rewards, again.reward) == (0.25, 0.25)
    assert (asked["response_text"], asked["ground_truth"], asked["prompt"]) == ("four", "4", "2 + 2?")
    assert (asked["payload"], asked["result"]) == (rollout.payload, rollout.result)
    assert asked["rollout"] is rollout
    assert replace(again, rewards=1.0).__dict__ == rollout.__dict__  # nothing else has changed


def test_what_the_row_and_the_result_say_comes_before_what_is_made_of_them() -> None:
    def score(ground_truth: str, response_text: str, x: str) -> float:
        return float((ground_truth, response_text, x) == ("g", "r", "of the result"))

    row, result = {"answer": "a", "ground_truth": "g", "x": "of the row"}, {"response": "b", "response_text": "r"}
    rollout = make_rollout(None, payload=row, result=result | {"x": "of the result"})
    assert rescore(rollout, score).reward == 1.0


def test_a_column_named_like_one_of_ours_does_not_hide_it() -> None:
    rollout = make_rollout(1.0, payload={"payload": "x", "result": "y"}, result={"rollout": "z"})

    def score(payload: Any, result: Any, rollout: Any) -> bool:
        return isinstance(payload, dict) and isinstance(result, dict) and isinstance(rollout, Rollout)

    assert rescore(rollout, score).reward == 1.0


def test_all_of_it_for_those_who_take_anything() -> None:
    class Whole(RewardFunction):
        def __call__(self, *, response_text: str, **kwargs: Any) -> float:
            assert {"ground_truth", "prompt", "answer", "payload", "result", "rollout", "response"} <= kwargs.keys()
            return float(response_text == "four")

    assert rescore(make_rollout(0.0), Whole()).reward == 1.0


def test_what_has_a_default_may_be_missing() -> None:
    def score(response_text: str, unknown: int = 3, *args: Any) -> list[int]:
        return [len(args), unknown]

    assert rescore(make_rollout(0.0), score).rewards == [0.0, 3.0]


def test_what_is_missing_is_named_with_what_there_is() -> None:
    def score(response_text: str, weather: str, *, mood: str) -> float:
        return 1.0

    with pytest.raises(ConfigError, match="the reward function needs weather, mood") as caught:
        rescore(make_rollout(0.0), score)
    assert "hint: available: answer, ground_truth, payload, prompt, response, " in str(caught.value)


def test_a_reward_that_is_none_is_refused() -> None:
    with pytest.raises(RewardInvalid, match="nan"):
        rescore(make_rollout(0.0), lambda: float("nan"))


# Which rollouts are scored


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.COMPLETED, Status.REWARD_ERROR)])
def test_failed_rollouts_stay_as_they_are(status: Status) -> None:
    rollout = failed(status, result={"response": "half of it", "returned": {"response": "x"}})
    assert rescore(rollout, lambda: 1.0) is rollout


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.REWARD_ERROR])
def test_without_a_result_there_is_nothing_to_score(status: Status) -> None:
    rollout = failed(status)
    assert rescore(rollout, lambda: 1.0) is rollout


def test_a_reward_that_could_not_be_computed_is_made_up_for() -> None:
    document = {"status_code": 500, "error": {"kind": "reward_error"}, "returned": {"response": "4", "rewards": "one"}}
    rollout = failed(Status.REWARD_ERROR, result=document)
    again = rescore(rollout, lambda response_text, ground_truth: response_text == ground_truth)
    assert (again.reward, again.status, again.error) == (1.0, Status.COMPLETED, None)
    assert (again.action, again.why, again.trained) == (Action.TRAIN, None, True)
    assert again.result == document


@pytest.mark.parametrize("returned", [None, "text", 3])
def test_a_reward_error_that_kept_nothing_is_scored_on_its_row(returned: Any) -> None:
    rollout = failed(Status.REWARD_ERROR, result={"returned": returned})
    assert rescore(rollout, lambda result, ground_truth: result == {} and ground_truth == "4").reward == 1.0


def test_what_was_left_out_for_its_reward_is_judged_again() -> None:
    without = make_rollout(None, action=Action.MASK, why="no reward")
    again = rescore(without, lambda: 0.5)
    assert (again.action, again.why) == (Action.TRAIN, None)
    empty = replace(without, rows=(), fidelity=NOTHING)
    assert rescore(empty, lambda: 0.5).why == "nothing to train on"
    gone = rescore(make_rollout(1.0), lambda: None)
    assert (gone.action, gone.why, gone.reward) == (Action.MASK, "no reward", None)


def test_what_was_left_out_for_anything_else_stays_out() -> None:
    rollout = make_rollout(0.0, action=Action.MASK, why="too long")
    again = rescore(rollout, lambda: 1.0)
    assert (again.reward, again.action, again.why) == (1.0, Action.MASK, "too long")


# Naming a reward function

SOURCE = """\
from __future__ import annotations
from dataclasses import dataclass
from agentcore_rl_toolkit import RewardFunction
from beside import HALF

def function(response_text):
    return HALF

@dataclass
class Whole(RewardFunction):
    points: float = 3.0

    def __call__(self, **kwargs):
        return self.points

class Needy:
    def __init__(self, value):
        pass

ready = Whole(points=4.0)
nothing = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("HALF = 0.5\n")
    path = tmp_path / "json.py"  # a name that something else has already
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(("name", "reward"), [("function", 0.5), ("Whole", 3.0), ("ready", 4.0)])
def test_a_function_a_class_and_an_object_of_a_file(file: Path, name: str, reward: float) -> None:
    path = list(sys.path)
    assert rescore(make_rollout(), load_reward(f"{file}:{name}")).reward == reward
    assert sys.path == path
    import json

    assert sys.modules["json"] is json
    assert json.dumps([1]) == "[1]"


def test_of_a_module() -> None:
    score = load_reward("agentcore_rl_toolkit.rewards:ExactMatch")
    rollout = make_rollout(0.0, payload={"answer": "four"}, result={"response": "four"})
    assert rescore(rollout, score).reward == 1.0


@pytest.mark.parametrize("spec", ["reward", ":name", "file.py:", ":", ""])
def test_what_names_none(spec: str) -> None:
    with pytest.raises(ConfigError, match="not a reward function") as caught:
        load_reward(spec)
    assert "hint: write file.py:name or module:name" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("absent", "can't be loaded"),
        ("nothing", "can't be called"),
        ("Needy", "without arguments: .*value"),
    ],
)
def test_what_is_none(file: Path, name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_reward(f"{file}:{name}")


@pytest.mark.parametrize("spec", ["nowhere.py:score", "no_such_module:score"])
def test_what_is_not_there(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.py is not a Python file|no_such_module:score can't be loaded"):
        load_reward(spec)
