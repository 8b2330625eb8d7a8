"""Expert routes: asked for from where they are not known yet, kept once, aligned with tokens across turns."""

from __future__ import annotations

import numpy as np

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from support.gateway import client, gateway, ids

MODEL = "scripted"


def test_routes_are_aligned_across_turns_and_kept_once() -> None:
    engine = ScriptedEngine([ids("It is sunny."), ids("You are welcome.")], routes_width=4)
    with gateway(engine, routes=True) as running:
        session = running.open_session()
        messages = [{"role": "user", "content": "How is the weather?"}]
        said = client(session).chat.completions.create(model=MODEL, messages=messages).choices[0].message.content
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Thanks!"}]
        client(session).chat.completions.create(model=MODEL, messages=messages)
        first, second = running.core.sessions.get(session["session_id"]).tree.turns
        assert engine.requests[0].routes_from == 0
        assert engine.requests[1].routes_from == first.length - 1  # the last token was never run through the model
        assert first.routes is not None
        assert second.routes is not None
        assert (second.routes.start, second.routes.start + second.routes.count) == (first.length - 1, second.length - 1)
        (row,) = running.trajectories(session["session_id"]).rows
        assert row.routes is not None
        assert row.routes.known.tolist() == [1] * (second.length - 1) + [0]
        expected = np.frombuffer(first.routes.data, np.uint8).reshape(-1, 4)
        assert (row.routes.data[: first.length - 1] == expected).all()
        later = np.frombuffer(second.routes.data, np.uint8).reshape(-1, 4)
        assert (row.routes.data[first.length - 1 : second.length - 1] == later).all()


def test_routes_are_not_asked_for_unless_wanted() -> None:
    engine = ScriptedEngine([ids("It is sunny.")])
    with gateway(engine) as running:
        session = running.open_session()
        client(session).chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
        assert engine.requests[0].routes_from is None
