"""The failure table, and changes to it."""

from __future__ import annotations

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rollout import FAILURES, Action, failure_table
from agentcore_rl_toolkit.types import Status


def test_every_way_to_end_has_a_line() -> None:
    assert set(FAILURES) == set(Status)


def test_only_what_completed_is_trained_and_the_infrastructures_failures_are_run_again() -> None:
    by_action = {action: {s.value for s in Status if FAILURES[s] is action} for action in Action}
    assert by_action == {
        Action.TRAIN: {"completed"},
        Action.MASK: {"truncated", "timeout", "agent_error", "reward_error"},
        Action.REFILL: {"session_lost", "engine_error", "cancelled"},
        Action.STOP: set(),
    }


def test_changes_change_their_line_and_nothing_else() -> None:
    table = failure_table({"timeout": "train", "agent_error": "stop"})
    assert table == dict(FAILURES) | {Status.TIMEOUT: Action.TRAIN, Status.AGENT_ERROR: Action.STOP}
    assert FAILURES[Status.TIMEOUT] is Action.MASK
    assert failure_table() == failure_table({}) == dict(FAILURES)


@pytest.mark.parametrize("line", [("timeout", "ignore"), ("slow", "train"), ("TIMEOUT", "train"), ("timeout", "")])
def test_a_line_that_is_none_is_refused_by_name(line: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"{line[0]}={line[1]}") as caught:
        failure_table(dict([line]))
    assert "hint: one of completed, truncated" in str(caught.value)
    assert "= one of train, mask, refill, stop" in str(caught.value)
