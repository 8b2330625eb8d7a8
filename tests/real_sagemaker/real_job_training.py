"""An agent that knows nothing but AWS's SDK is trained by TRL: every token it sampled, with the rewards it reported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.trl import TrlSettings, train

EXAMPLE = Path(__file__).parents[2] / "examples" / "strands_math_agent"

AGENT = r"""
import re

from bedrock_agentcore.runtime import BedrockAgentCoreApp
from calculator import calculator
from sagemaker.train.rft import sagemaker_rft_handler
from sagemaker.train.rft.adapters.strands import wrap_model
from strands import Agent
from strands.models.openai import OpenAIModel

app = BedrockAgentCoreApp()


@app.entrypoint
@sagemaker_rft_handler
async def invoke_agent(payload):
    client = {"base_url": payload["metadata"]["endpoint"] + "/v1", "api_key": "x"}
    model = wrap_model(OpenAIModel(client_args=client, model_id=payload["model_name"]))
    prompt = "Solve the math problem step by step."
    agent = Agent(model=model, tools=[calculator], system_prompt=prompt, callback_handler=None)
    said = re.findall(r"-?\d+", str(await agent.invoke_async(payload["instance"]["prompt"])))
    return {"reward": float(said[-1:] == [payload["instance"]["answer"]])}


if __name__ == "__main__":
    app.run()
"""


@pytest.mark.timeout(1800)
def test_its_policy_is_trained(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "app.py").write_text(AGENT)
    shutil.copy(EXAMPLE / "calculator.py", tmp_path / "agent")
    command = [sys.executable, str(EXAMPLE / "problems.py"), "train", "16"]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (tmp_path / "train.jsonl").write_text(rows)
    settings = TrlSettings(
        agent=str(tmp_path / "agent" / "app.py"),
        agent_protocol="sagemaker",
        model="tiny",
        data=str(tmp_path / "train.jsonl"),
        output=str(tmp_path / "run"),
        steps=2,
        rows_per_step=4,
        n=4,
        learning_rate=2.5e-4,
        max_tokens=64,
        concurrency=8,
        timeout=600,
    )
    summary = train(settings)
    print("\nreward", summary["reward"], "trained", summary["trained"])  # noqa: T201
    assert (summary["steps"], summary["fidelity"]) == (2, 1.0)
    assert summary["trained"] >= 16
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["reward"] for line in lines if "reward" in line] == summary["reward"]
    assert max(line["sampler/ratio_max"] for line in lines if "sampler/ratio_max" in line) < 1.001
