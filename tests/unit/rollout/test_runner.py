"""What a stored result comes to."""

from __future__ import annotations

from typing import Any

import pytest

from agentcore_rl_toolkit.agent.result import Result
from agentcore_rl_toolkit.rollout import RolloutOptions, RolloutRunner
from agentcore_rl_toolkit.rollout.runner import _Row, _Step
from agentcore_rl_toolkit.rollout.sample import Sample
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_rollout


@pytest.mark.parametrize(
    ("document", "status", "rewards"),
    [
        ({"status_code": 200, "rewards": [0, 1]}, Status.COMPLETED, [0.0, 1.0]),
        ({"status_code": 200}, Status.COMPLETED, None),
        ({"status_code": 200, "rewards": "one"}, Status.REWARD_ERROR, None),  # not an app of ours
        ({"status_code": 500, "error": {"kind": "timeout"}, "stop_reason": "slow"}, Status.TIMEOUT, None),
    ],
)
def test_a_result_becomes_a_rollout(document: dict[str, Any], status: Status, rewards: Any) -> None:
    nobody: Any = None
    rollout = Sample(nobody, nobody, RolloutOptions(), {"prompt": "hi"}, "row", 3)._with_result(Result(document))
    assert (rollout.status, rollout.rewards, rollout.result) == (status, rewards, document)
    assert (rollout.sample, rollout.input_id, rollout.payload) == (3, "row", {"prompt": "hi"})
    assert (rollout.error is None) == (status is Status.COMPLETED)


def test_what_is_given_up_before_it_has_a_session_has_none_and_has_not_failed() -> None:
    nobody: Any = None
    sample = Sample(nobody, nobody, RolloutOptions(), {"prompt": "hi"}, "row", 3)
    rollout = sample.given_up()
    assert (rollout.session_id, rollout.status, rollout.why) == (None, Status.CANCELLED, "no longer needed")
    assert not rollout.failed
    sample._since = 1.0
    assert sample.given_up().session_id == sample.id


@pytest.mark.parametrize(
    "reason", ["x" * 10_000_000, [["deep"]], {"a": 1}, "\ud800"], ids=lambda reason: str(reason)[:9]
)
def test_what_went_wrong_is_a_text_of_bounded_length(reason: Any) -> None:
    nobody: Any = None
    document = {"status_code": 500, "stop_reason": reason, "traceback": ["no", "text"]}
    rollout = Sample(nobody, nobody, RolloutOptions(), {}, "row", 0)._with_result(Result(document))
    assert rollout.error is not None
    assert 0 < len(rollout.error.encode()) < 5000


def test_an_outage_costs_a_row_one_refill_however_many_of_its_samples_it_took() -> None:
    nobody: Any = None
    runner = RolloutRunner(nobody, nobody)
    step, row, outage = _Step(runner, RolloutOptions()), _Row({}, "row-1"), runner.outage
    for _ in range(2):
        number = outage.number
        for name in ("row-1", "row-2"):
            outage.ended("session", name, Status.SESSION_LOST, 0.0)
        assert [step._counts(failed(Status.SESSION_LOST), row, number) for _ in range(3)] == [False] * 3
        outage.ended("session", "row-2", Status.COMPLETED, 1.0)
        assert [step._counts(failed(Status.SESSION_LOST), row, number) for _ in range(3)] == [True, False, False]
    assert step._counts(make_rollout(1.0), row, outage.number)  # a stale one, say
