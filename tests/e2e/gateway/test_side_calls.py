"""Side calls are answered and recorded like others, and not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from support.gateway import MODEL, WEATHER, client, gateway, ids

USER = {"role": "user", "content": "how is the weather?"}
TITLE = [{"role": "system", "content": "Write a title of 5 words."}, USER]
RULES: list[dict[str, Any]] = [{"model": "*haiku*"}, {"system": "write a title"}, {"tools": "none"}]


def talk(session: dict[str, Any]) -> list[dict[str, Any]]:
    """Two turns, and between them a title by the small model."""
    chat = client(session).chat.completions
    history: list[dict[str, Any]] = [USER]
    for question in ("and tomorrow?", "thanks"):
        said = chat.create(model="claude-opus", messages=history, tools=[WEATHER]).choices[0].message.content
        history += [{"role": "assistant", "content": said}, {"role": "user", "content": question}]
        if question == "and tomorrow?":
            title = chat.create(model="claude-haiku", messages=TITLE).choices[0].message.content
            assert title == "weather"
    return history


def script() -> ScriptedEngine:
    return ScriptedEngine([ids("sunny"), ids("weather"), ids("rainy"), ids("another"), ids("more")])


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("where", ["session", "gateway"])
def test_a_side_call_is_counted_and_not_trained_on(rules: dict[str, Any], where: str):
    with gateway(script(), **({"side_calls": rules} if where == "gateway" else {})) as running:
        session = running.open_session(model=MODEL, **({"side_calls": rules} if where == "session" else {}))
        talk(session)
        known = running.trajectories(session["session_id"])
        assert known.fidelity.masked == {"side_call": len(ids("weather"))}
        assert known.fidelity.trained == known.fidelity.wanted == len(ids("sunny")) + len(ids("rainy"))
        assert (known.fidelity.rows, known.fidelity.turns) == (1, 3)
        assert sum(row.weight for row in known.rows) == 1


def test_a_session_may_train_on_what_the_gateway_leaves_out():
    with gateway(script(), side_calls={"model": "*haiku*"}) as running:
        session = running.open_session(model=MODEL, side_calls={})
        talk(session)
        assert running.trajectories(session["session_id"]).fidelity.masked == {}


def test_side_calls_stay_so_after_a_restart_and_are_gone_on_from(tmp_path: Path):
    with gateway(script(), log=tmp_path) as running:
        session = running.open_session(model=MODEL, side_calls={"model": "*haiku*"})
        talk(session)
    with gateway([ids("another")], log=tmp_path) as running:
        again = running.core.sessions.get(session["session_id"])
        url = session["base_url"].replace(session["base_url"].split("/sessions")[0], running.url)
        chat = client({"base_url": url}).chat.completions
        messages = [*TITLE, {"role": "assistant", "content": "weather"}, {"role": "user", "content": "another"}]
        chat.create(model="claude-haiku", messages=messages)
        known = running.core.trajectories(again).fidelity
        assert known.masked == {"side_call": len(ids("weather")) + len(ids("another"))}
        assert (known.bridges, known.turns) == (2, 4)


def test_a_side_call_that_never_arrived_stays_one_and_so_does_its_second_try():
    with gateway(script()) as running:
        session = running.open_session(model=MODEL, side_calls={"model": "*haiku*"})
        talk(session)
        core = running.core
        known = core.sessions.get(session["session_id"])
        (answer,) = (answer for answer in known.answers.values() if answer.outcomes[0].reply.content == "weather")
        for told in (core.recorder.mark_undelivered, core.recorder.mark_delivered):
            told(known, answer)
            assert core.trajectories(known).fidelity.masked == {"side_call": len(ids("weather"))}
