"""What a stored result comes to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentcore_rl_toolkit.result import Result
from agentcore_rl_toolkit.rollout import RolloutOptions
from agentcore_rl_toolkit.rollout.run import _Attempt
from agentcore_rl_toolkit.types import Status


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
    nobody: Any = SimpleNamespace(client=None, gateway=None)
    rollout = _Attempt(nobody, RolloutOptions(), {"prompt": "hi"}, "row", 3)._with_result(Result(document))
    assert (rollout.status, rollout.rewards, rollout.result) == (status, rewards, document)
    assert (rollout.sample, rollout.input_id, rollout.payload) == (3, "row", {"prompt": "hi"})
    assert (rollout.error is None) == (status is Status.COMPLETED)
