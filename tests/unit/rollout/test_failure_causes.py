"""What rollouts died of, for people."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

from agentcore_rl_toolkit.rollout import Action, Causes, Rollout
from agentcore_rl_toolkit.types import Status
from support.rollouts import make_group, make_rollout, make_row


def died(error: str | None, *, why: str = "agent_error", traceback: str | None = None) -> Rollout:
    result = None if traceback is None else {"traceback": traceback}
    known = make_rollout(0.0, make_row([1], [2]), action=Action.MASK)
    return replace(known, status=Status.AGENT_ERROR, why=why, error=error, result=result)


def test_one_cause_is_one_line_however_its_ids_and_numbers_differ() -> None:
    causes = Causes()
    places = ("0x7f3a1b", "0x55d0c2")
    causes.add([make_group(*(died(f"KeyError: 'answer' at {place}, row {n}") for n, place in enumerate(places)))])
    causes.add([make_group(died("ValueError: no such table\nmore"), died(None, why="truncated"))])
    assert causes.figures() == [
        {"cause": "agent_error: KeyError: 'answer' at 0x7f3a1b, row 0", "rollouts": 2},
        {"cause": "agent_error: ValueError: no such table", "rollouts": 1},
        {"cause": "truncated", "rollouts": 1},
    ]


def test_the_commonest_traceback_is_shown_once() -> None:
    causes = Causes()
    rare, common = died("ValueError: b", traceback="trace of b"), died("KeyError: a", traceback="trace of a")
    causes.add([make_group(rare, common, common)])
    assert causes.text() == ("       2 × agent_error: KeyError: a\n       1 × agent_error: ValueError: b\n\ntrace of a")


def test_what_was_trained_on_or_not_needed_is_no_cause() -> None:
    causes, fine = Causes(), make_rollout(1.0, make_row([1], [2]))
    causes.add([make_group(fine, died(None, why="no longer needed"))])
    assert not causes.counts
    causes.add([make_group(fine, fine, dropped="no variance")])
    assert causes.figures() == [{"cause": "group dropped: no variance", "rollouts": 2}]


def test_causes_of_several_processes_add_up() -> None:
    first, second = Causes(), Causes()
    first.add([make_group(died("a"))])
    second.add([make_group(died("a"), died("b", traceback="trace"))])
    merged = Causes.merged(pickle.loads(pickle.dumps([first, second])))
    assert [(line["cause"], line["rollouts"]) for line in merged.figures()] == [
        ("agent_error: a", 2),
        ("agent_error: b", 1),
    ]
    assert merged.text().endswith("trace")


def test_a_known_cause_has_a_hint() -> None:
    causes = Causes()
    assert causes.hint is None
    causes.add([make_group(died(None, why="truncated"), died(None, why="truncated"), died("x"))])
    assert causes.hint is not None
    assert "max_tokens" in causes.hint


def test_causes_survive_json() -> None:
    causes = Causes()
    causes.add([make_group(died("KeyError: row 7", traceback="trace"), died("b"), died("b"))])
    again = Causes.from_dict(json.loads(json.dumps(causes.to_dict())))
    assert (again.figures(), again.text()) == (causes.figures(), causes.text())
