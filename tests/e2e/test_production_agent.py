"""The agent that is in production on Bedrock, trained after one changed line."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Sequence
from pathlib import Path

from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.runtime.local import AgentSource, LocalRuntime
from support.example import MATH_AGENT
from support.gateway import MODEL, call_text, gateway, ids, text_of
from support.loop import loop_thread
from support.runtime import RuntimeUser

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "gateway.md"
PROMPT = "Ada has 6 boxes with 7 pears in each. How many pears does Ada have?"
BEFORE = '    model = BedrockModel(model_id="us.anthropic.claude-sonnet-4-20250514-v1:0")'
AFTER = BEFORE.removesuffix(")") + ', endpoint_url=payload["_rollout"]["base_url"])'


def asks_the_calculator(request: SampleRequest) -> Sequence[int]:
    said = text_of(request.prompt)
    if "<tool_response>" not in said:
        assert "Solve the math problem step by step." in said
        assert '"name": "calculator"' in said
        return ids("<think>\n6 times 7\n</think>\n\n" + call_text("calculator", expression="6*7"))
    return ids(f"The answer is {said.split('<tool_response>')[1].split()[0]}.")


def test_one_changed_line(tmp_path: Path) -> None:
    production = (MATH_AGENT / "basic_app.py").read_text().splitlines()
    trained = [AFTER if line == BEFORE else line for line in production]
    changes = list(difflib.unified_diff(production, trained, n=0, lineterm=""))
    assert [line for line in changes if not line.startswith(("---", "+++", "@@"))] == [f"-{BEFORE}", f"+{AFTER}"]
    assert f"-{BEFORE}\n+{AFTER}\n" in GUIDE.read_text()
    shutil.copytree(MATH_AGENT, tmp_path / "agent")
    app = tmp_path / "agent" / "basic_app.py"
    app.write_text("\n".join(trained))

    engine = ScriptedEngine(asks_the_calculator)
    with gateway(engine) as running, loop_thread() as threads:
        runtime = LocalRuntime(AgentSource.parse(app))
        threads.run(runtime.start())
        try:
            session = running.open_session(model=MODEL, enforced={"temperature": 1.0})
            answer = RuntimeUser(runtime, threads, app).ask(prompt=PROMPT, _rollout={"base_url": session["base_url"]})
        finally:
            threads.run(runtime.aclose())
        assert answer.strip() == "The answer is 42."
        known = running.trajectories(session["session_id"])
        assert (known.fidelity.turns, known.fidelity.rows, known.fidelity.bridges) == (2, 1, 1)
        assert known.fidelity.trained == known.fidelity.sampled
        (row,) = known.rows
        sampled = [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
        assert "6*7" in text_of(sampled)
        assert text_of(sampled).endswith("The answer is 42.<|im_end|>")
        assert {(request.model, request.sampling.temperature) for request in engine.requests} == {(MODEL, 1.0)}
