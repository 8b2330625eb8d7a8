"""What stored results come to, over a runtime that runs no agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.rollout import Rollout, RolloutOptions, run_rollouts
from agentcore_rl_toolkit.rollout.sample import Sample
from agentcore_rl_toolkit.types import Status
from support.gateway import gateway
from support.own_runtime import OwnRuntime


def rollout_of(document: dict[str, Any], folder: Path) -> Rollout:
    """The rollout of a session that stores this document."""
    runtime = OwnRuntime(lambda payload: json.dumps(document).encode())
    with RolloutClient(runtime, folder, "exp") as client, gateway(ScriptedEngine([])) as running:
        settings: dict[str, Any] = {"client": client, "gateway": running, "keep_dropped": True}
        (group,) = run_rollouts([{"prompt": "hi", "input_id": "row"}], 1, **settings)
    (rollout,) = group.rollouts
    return rollout


@pytest.mark.parametrize(
    ("document", "status", "rewards"),
    [
        ({"status_code": 200, "rewards": [0, 1]}, Status.COMPLETED, [0.0, 1.0]),
        ({"status_code": 200}, Status.COMPLETED, None),
        ({"status_code": 200, "rewards": "one"}, Status.REWARD_ERROR, None),  # not an app of ours
        ({"status_code": 500, "error": {"kind": "timeout"}, "stop_reason": "slow"}, Status.TIMEOUT, None),
    ],
)
def test_a_result_becomes_a_rollout(tmp_path: Path, document: dict[str, Any], status: Status, rewards: Any) -> None:
    rollout = rollout_of(document, tmp_path)
    assert (rollout.status, rollout.rewards, rollout.result) == (status, rewards, document)
    assert (rollout.sample, rollout.input_id, rollout.payload["prompt"]) == (0, "row", "hi")
    assert (rollout.error is None) == (status is Status.COMPLETED)


@pytest.mark.parametrize(
    "reason", ["x" * 10_000_000, [["deep"]], {"a": 1}, "\ud800"], ids=lambda reason: str(reason)[:9]
)
def test_what_went_wrong_is_a_text_of_bounded_length(tmp_path: Path, reason: Any) -> None:
    rollout = rollout_of({"status_code": 500, "stop_reason": reason, "traceback": ["no", "text"]}, tmp_path)
    assert rollout.error is not None
    assert 0 < len(rollout.error.encode()) < 5000


def test_what_is_given_up_before_it_has_a_session_has_none_and_has_not_failed() -> None:
    nobody: Any = None
    rollout = Sample(nobody, nobody, RolloutOptions(), {"prompt": "hi"}, "row", 3).given_up()
    assert (rollout.session_id, rollout.status, rollout.why) == (None, Status.CANCELLED, "no longer needed")
    assert not rollout.failed
