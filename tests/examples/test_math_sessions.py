"""The math agent of the examples: sandboxed sessions, a real gateway, and a policy that follows a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
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


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutClient]:
    with RolloutClient(MATH_AGENT, tmp_path_factory.mktemp("store"), "exp") as running:
        yield running


@pytest.mark.parametrize(
    ("policy", "reward", "turns"), [(asks_the_calculator, 1.0, 2), (guesses, 0.0, 1), (writes_nonsense, 0.0, 2)]
)
def test_a_rollout(
    policy: Callable[[SampleRequest], Sequence[int]], reward: float, turns: int, client: RolloutClient
) -> None:
    engine = ScriptedEngine(policy)
    with gateway(engine) as running:
        session = running.open_session()
        settings = {"base_url": session["base_url"], "model_id": MODEL, "sampling_params": {"max_tokens": 99}}
        result = client.invoke(ROW, **settings).result(timeout=60)
        assert (result["status_code"], result["rewards"]) == (200, reward), result
        known = running.trajectories(session["session_id"]).fidelity
        assert (known.turns, known.rows, known.bridges, known.renders) == (turns, 1, turns - 1, 0)
        assert known.trained == known.sampled
        assert {request.sampling.max_tokens for request in engine.requests} == {99}


@pytest.mark.parametrize(
    "prompt", [7, [{"toolUse": {"toolUseId": "1", "name": "calculator", "input": {"expression": "6*7"}}}]]
)
def test_a_prompt_that_is_no_string_is_refused(prompt: object, client: RolloutClient) -> None:
    row = {"prompt": prompt, "answer": "42"}
    result = client.invoke(row, base_url="http://127.0.0.1:9/v1", model_id="never-called").result(timeout=60)
    assert result["status_code"] == 500
    assert "the payload is refused: prompt: Input should be a valid string" in result["stop_reason"]


def test_eval_takes_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gateway(ScriptedEngine(guesses)) as running:
        policy = ["--base-url", running.open_session()["base_url"], "--model-id", MODEL]
        assert main(["eval", str(MATH_AGENT), *policy, "--limit", "2", "--store", str(tmp_path), "--quiet"]) == 0
    figures = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["completed", "2"] in figures
    assert ["mean", "reward", "0"] in figures
