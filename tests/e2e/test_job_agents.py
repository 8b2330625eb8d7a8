"""Agents of SageMaker's multi-turn RL, driven by the client: what they report becomes the rollout's result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import ConfigError, RuntimeFault
from agentcore_rl_toolkit.rollout import Rollout, RolloutOptions, RolloutRunner
from agentcore_rl_toolkit.types import Status
from support.gateway import gateway, ids, text_of

AGENT = '''
"""Written as agents for AWS's SDK are, which this file doesn't need: it calls the service's HTTP itself."""
import os
import time

import httpx
import openai
from bedrock_agentcore.runtime import BedrockAgentCoreApp

app = BedrockAgentCoreApp()


@app.entrypoint
def invoke_agent(payload):
    metadata, row = payload["metadata"], payload["instance"]
    headers = {
        "X-Amzn-SageMaker-Job-Arn": metadata["job_arn"],
        "X-Amzn-SageMaker-Trajectory-Id": metadata["trajectory_id"],
    }
    sent = {"JobArn": metadata["job_arn"], "TrajectoryId": metadata["trajectory_id"]}

    def report(path, **fields):
        httpx.post(f"{metadata['endpoint']}/{path}", json={**sent, **fields}).raise_for_status()

    with openai.OpenAI(
        base_url=metadata["endpoint"] + "/v1", api_key="EMPTY", default_headers=headers, max_retries=0
    ) as model:
        asked = [{"role": "user", "content": row["prompt"]}]
        said = model.chat.completions.create(model=payload["model_name"], messages=asked).choices[0].message.content
    if said == "fail":
        report("complete-rollout", Status="failed")
        raise ValueError("broken on purpose")
    if said == "silent":
        return {"reward": 1.0}
    if said == "vanish":
        os._exit(9)
    if said == "sleep":
        time.sleep(300)
    report("complete-rollout", Status="ready")
    if said != "none":
        report("update-reward", Rewards=[float(part) for part in said.split()])
    return {"reward": said, "params": payload["inference_params"]}


if __name__ == "__main__":
    app.run()
'''

OURS = """
import openai
from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()

@app.rollout_entrypoint
def invoke_agent(payload):
    endpoint = app.model_endpoint(payload)
    with openai.OpenAI(**endpoint.client_args, max_retries=0) as model:
        asked = [{"role": "user", "content": payload["instance"]["prompt"]}]
        said = model.chat.completions.create(model=endpoint.model_id, messages=asked).choices[0].message.content
    if "_rollout" not in payload:
        return said  # as in production
    return {"rewards": [float(part) for part in said.split()]}

if __name__ == "__main__":
    app.run()
"""


def say(request: SampleRequest) -> list[int]:
    """The engine says what the row's prompt asks it to."""
    prompt = text_of(request.prompt)
    return ids(prompt.split("say: ")[-1].split("<|im_end|>")[0])


def client(agent: str, tmp_path: Path) -> RolloutClient:
    (tmp_path / "app.py").write_text(agent)
    return RolloutClient(str(tmp_path / "app.py"), str(tmp_path / "results"), "exp", agent_protocol="sagemaker")


def run(client: RolloutClient, *lines: str, timeout: float = 60) -> list[Rollout]:
    options = RolloutOptions(
        n=1, timeout=timeout, max_refills=0, max_failures=99, keep_dropped=True, sampling={"temperature": 1.0}
    )
    with gateway(ScriptedEngine(say)) as running, closing(RolloutRunner(client, running, options)) as runner:
        groups = sorted(runner.run([{"prompt": f"say: {line}"} for line in lines]), key=lambda group: group.index)
        return [(*group.rollouts, *group.others)[0] for group in groups]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutClient]:
    with client(AGENT, tmp_path_factory.mktemp("agent")) as made:
        yield made


def test_what_the_agent_reports_is_the_result(agent: RolloutClient) -> None:
    one, turns, none = run(agent, "0.5", "0 1", "none")
    assert [rollout.status for rollout in (one, turns, none)] == [Status.COMPLETED] * 3
    assert [rollout.rewards for rollout in (one, turns, none)] == [0.5, [0.0, 1.0], None]
    assert one.fidelity.trained == one.fidelity.sampled == len(ids("0.5"))
    result: Any = one.result
    assert result["answer"]["params"] == {"temperature": 1.0}
    assert result["payload"]["prompt"] == "say: 0.5"


def test_failures_say_what_the_agent_died_of(agent: RolloutClient) -> None:
    failed, silent, vanished = run(agent, "fail", "silent", "vanish")
    assert failed.status is Status.AGENT_ERROR
    assert "broken on purpose" in str(failed.error)
    assert silent.status is Status.AGENT_ERROR
    assert "without completing its rollout" in str(silent.error)
    assert vanished.status is Status.SESSION_LOST
    assert [rollout.rewards for rollout in (failed, silent, vanished)] == [None] * 3
    assert [rollout.fidelity.sampled for rollout in (failed, silent, vanished)] != [0, 0, 0]


def test_a_rollout_that_never_ends_is_stopped(agent: RolloutClient) -> None:
    (rollout,) = run(agent, "sleep", timeout=3)
    assert rollout.status is Status.TIMEOUT


def test_our_own_app_answers_a_job_too(tmp_path: Path) -> None:
    with client(OURS, tmp_path) as ours:
        (rollout,) = run(ours, "0.25 0.5")
    assert (rollout.status, rollout.rewards) == (Status.COMPLETED, [0.25, 0.5])


def test_such_an_agent_needs_a_gateway_session(agent: RolloutClient) -> None:
    with pytest.raises(RuntimeFault, match="needs a gateway session"):
        agent.invoke({"prompt": "x"}, base_url="http://127.0.0.1:9/v1")


def test_another_protocol_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of agentcore, sagemaker"):
        RolloutClient("app.py", str(tmp_path), "exp", agent_protocol="http")
