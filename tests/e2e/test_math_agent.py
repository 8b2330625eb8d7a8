"""The math agent of the examples: sandboxed sessions, a real gateway, and a policy that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.gateway.engine.base import SampleRequest
from agentcore_rl_toolkit.gateway.engine.scripted import ScriptedEngine
from support.example import MATH_AGENT
from support.gateway import MODEL, call_text, gateway, ids, text_of

ROW = {"prompt": "Ada has 6 boxes with 7 pears in each. How many pears does Ada have?", "answer": "42"}


def asks_the_calculator(request: SampleRequest) -> Sequence[int]:
    said = text_of(request.prompt)
    if "<tool_response>" not in said:
        assert "Solve the math problem step by step." in said
        assert '"name": "calculator"' in said
        return ids(call_text("calculator", expression="6*7"))
    return ids(f"The answer is {said.split('<tool_response>')[1].split()[0]}.")


def guesses(request: SampleRequest) -> Sequence[int]:
    return ids("I think the answer is 43.")


def writes_nonsense(request: SampleRequest) -> Sequence[int]:
    said = text_of(request.prompt)
    return ids("I don't know." if "error" in said else call_text("calculator", expression="6 boxes"))


@pytest.mark.parametrize(
    ("policy", "reward", "turns"), [(asks_the_calculator, 1.0, 2), (guesses, 0.0, 1), (writes_nonsense, 0.0, 2)]
)
def test_a_rollout(policy: Callable[[SampleRequest], Sequence[int]], reward: float, turns: int, tmp_path: Path) -> None:
    engine = ScriptedEngine(policy)
    with gateway(engine) as running, RolloutClient(MATH_AGENT / "rl_app.py", tmp_path, "exp") as client:
        session = running.open_session()
        settings = {"base_url": session["base_url"], "model_id": MODEL, "sampling_params": {"max_tokens": 99}}
        result = client.invoke(ROW, **settings).result(timeout=60)
        assert (result["status_code"], result["rewards"]) == (200, reward), result
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.turns, known.rows, known.bridges, known.renders) == (turns, 1, turns - 1, 0)
        assert known.trained == known.sampled
        assert {request.sampling.max_tokens for request in engine.requests} == {99}
