"""AWS's decorator, feedback client and both adapters, unmodified, in sandboxed sessions against the gateway.

`make test-sagemaker` installs the SDK beside the project's environment and runs this file.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.rollout import RolloutOptions, RolloutRunner
from agentcore_rl_toolkit.types import Status
from support.gateway import gateway, ids, text_of

STRANDS = """
from bedrock_agentcore.runtime import BedrockAgentCoreApp
from sagemaker.train.rft import sagemaker_rft_handler
from sagemaker.train.rft.adapters.strands import wrap_model
from strands import Agent
from strands.models.openai import OpenAIModel

app = BedrockAgentCoreApp()


@app.entrypoint
@sagemaker_rft_handler
async def invoke_agent(payload):
    base_url = payload["metadata"]["endpoint"] + "/v1"
    model = wrap_model(OpenAIModel(client_args={"base_url": base_url, "api_key": "x"}, model_id=payload["model_name"]))
    text = str(await Agent(model=model, callback_handler=None).invoke_async(payload["instance"]["prompt"]))
    if "fail" in text:
        raise ValueError("broken on purpose")
    return {"reward": [float(part) for part in text.split()] if " " in text.strip() else float(text)}


if __name__ == "__main__":
    app.run()
"""

LANGCHAIN = """
from bedrock_agentcore.runtime import BedrockAgentCoreApp
from langchain_openai import ChatOpenAI
from sagemaker.train.rft import sagemaker_rft_handler
from sagemaker.train.rft.adapters.langchain import create_http_client

app = BedrockAgentCoreApp()


@app.entrypoint
@sagemaker_rft_handler
def invoke_agent(payload):
    base_url = payload["metadata"]["endpoint"] + "/v1"
    with create_http_client() as http:
        model = ChatOpenAI(model=payload["model_name"], base_url=base_url, api_key="x", http_client=http)
        text = str(model.invoke(payload["instance"]["prompt"]).content)
    if "fail" in text:
        raise ValueError("broken on purpose")
    return {"reward": [float(part) for part in text.split()] if " " in text.strip() else float(text)}


if __name__ == "__main__":
    app.run()
"""


def say(request: SampleRequest) -> list[int]:
    return ids(text_of(request.prompt).split("say: ")[-1].split("<|im_end|>")[0])


@pytest.mark.parametrize("agent", [STRANDS, LANGCHAIN], ids=["strands", "langchain"])
def test_an_agent_of_awss_sdk_is_completed_and_rewarded(agent: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(agent)
    options = RolloutOptions(n=1, timeout=240, max_refills=0, max_failures=99, keep_dropped=True)
    rows = [{"prompt": f"say: {line}"} for line in ("0.5", "0 1", "fail")]
    with (
        gateway(ScriptedEngine(say)) as running,
        RolloutClient(str(tmp_path / "app.py"), str(tmp_path / "results"), "exp", agent_protocol="sagemaker") as client,
        closing(RolloutRunner(client, running, options)) as runner,
    ):
        groups = sorted(runner.run(rows), key=lambda group: group.index)
        one, turns, failed = ((*group.rollouts, *group.others)[0] for group in groups)
    assert [one.status, turns.status, failed.status] == [Status.COMPLETED, Status.COMPLETED, Status.AGENT_ERROR]
    assert [one.rewards, turns.rewards, failed.rewards] == [0.5, [0.0, 1.0], None]
    assert "broken on purpose" in str(failed.error)
    for rollout in (one, turns, failed):
        assert rollout.fidelity.trained == rollout.fidelity.sampled > 0
