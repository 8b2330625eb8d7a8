"""SageMaker's Job Runtime on the gateway, by boto3 as it is: under a session's URL, and at the root."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import httpx
import openai
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.gateway import Server
from agentcore_rl_toolkit.gateway.http.jobs.job_runtime_app import JobRuntimeApp, trajectory_session
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from support.agent import run_agent
from support.gateway import MODEL, gateway, gateway_tokenizer, ids
from support.loop import loop_thread

ARN = "arn:aws:sagemaker:us-east-1:123456789012:job/AgentRFT/math"
KEY = "the-admin-key-of-this-job-runtime"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "two plus two?"}]}


@contextmanager
def job_client(url: str, key: str | None = None) -> Iterator[Any]:
    config = Config(retries={"total_max_attempts": 1}, signature_version=UNSIGNED if key is None else None)
    keys = {} if key is None else {"aws_access_key_id": key, "aws_secret_access_key": "-"}
    made = boto3.Session().client(
        "sagemakerjobruntime", endpoint_url=url, region_name="us-east-1", config=config, **keys
    )
    try:
        yield made
    finally:
        made.close()


@contextmanager
def job_runtime(engine: ScriptedEngine, *, trusts: bool = True) -> Iterator[Server]:
    core = Core(engine, ChatRenderer(gateway_tokenizer()))

    def make(*args: Any, **kwargs: Any) -> JobRuntimeApp:
        return JobRuntimeApp(*args, **kwargs | {"trusts_own_user": trusts})

    with loop_thread() as threads:

        async def start() -> Server:
            server = Server(core, admin_key=KEY, host="127.0.0.1", port=0, make_app=make)
            await server.start()
            return server

        server = threads.run(start())
        try:
            yield server
        finally:
            threads.run(server.close())


def said(events: str) -> str:
    """The text of a stream."""
    chunks = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def code_of(refused: pytest.ExceptionInfo[ClientError]) -> str:
    return str(refused.value.response["Error"]["Code"])


def sample(client: Any, trajectory: str = "t-1", **body: Any) -> Any:
    answer = client.sample(JobArn=ARN, TrajectoryId=trajectory, Body=json.dumps(BODY | body).encode())
    return json.loads(answer["Body"].read())


def test_a_sessions_url_is_the_endpoint_of_a_job_runtime() -> None:
    with gateway(ScriptedEngine([ids("four"), ids("five")])) as running:
        session = running.open_session()
        endpoint = session["base_url"].removesuffix("/v1")
        with job_client(endpoint) as client:
            assert sample(client, stream=True)["choices"][0]["message"]["content"] == "four"
            events = client.sample_with_response_stream(JobArn=ARN, TrajectoryId="t-1", Body=json.dumps(BODY).encode())
            text = events["Body"].read().decode()
            assert said(text) == "five"
            assert text.endswith("data: [DONE]\n\n")
            client.complete_rollout(JobArn=ARN, TrajectoryId="t-1", Status="ready", ClientToken="a")
            client.complete_rollout(JobArn=ARN, TrajectoryId="t-1", Status="ready", ClientToken="a")
            client.update_reward(JobArn=ARN, TrajectoryId="t-1", Rewards=[0.0, 1.0], ClientToken="b")
            with pytest.raises(ClientError, match="Cannot transition trajectory") as refused:
                client.complete_rollout(JobArn=ARN, TrajectoryId="t-1", Status="failed", ClientToken="c")
            assert code_of(refused) == "ConflictException"
            with pytest.raises(ClientError, match="not in valid status: ready") as refused:
                sample(client)
            assert code_of(refused) == "ValidationException"
        report = httpx.get(f"{endpoint}/report").json()
        assert (report["job_status"], report["rewards"]) == ("ready", [0.0, 1.0])
        rows = running.trajectories(session["session_id"]).rows
        assert sum(sum(row.loss_mask) for row in rows) == len(ids("four")) + len(ids("five"))


def test_the_report_is_handed_out_once_it_changes() -> None:
    with gateway([ids("four")]) as running:
        endpoint = running.open_session()["base_url"].removesuffix("/v1")
        waiting = httpx.get(f"{endpoint}/report", params={"after": "sampling", "wait": "0.01"}).json()
        assert waiting["job_status"] == "sampling"
        body = {"JobArn": ARN, "TrajectoryId": "t", "Status": "failed"}
        assert httpx.post(f"{endpoint}/complete-rollout", json=body).status_code == 200
        changed = httpx.get(f"{endpoint}/report", params={"after": "sampling", "wait": "30"}, timeout=10).json()
        assert changed["job_status"] == "failed"
        assert httpx.get(f"{endpoint}/report", params={"wait": "nan"}).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("complete-rollout", {"JobArn": "job", "TrajectoryId": "t"}, 400, "ValidationException"),
        ("complete-rollout", {"JobArn": ARN}, 400, "ValidationException"),
        ("complete-rollout", {"JobArn": ARN, "TrajectoryId": "t", "Status": "maybe"}, 400, "ValidationException"),
        ("update-reward", {"JobArn": ARN, "TrajectoryId": "t", "Rewards": []}, 400, "ValidationException"),
        ("update-reward", {"JobArn": ARN, "TrajectoryId": "t", "Rewards": ["a"]}, 400, "ValidationException"),
        ("update-reward", {"JobArn": ARN, "TrajectoryId": "t", "Rewards": [1]}, 409, "ConflictException"),
        ("sample", [], 400, "ValidationException"),
        ("sample", {"messages": []}, 400, "ValidationException"),
    ],
)
def test_errors_are_the_services(path: str, body: Any, status: int, kind: str) -> None:
    with gateway([ids("four")]) as running:
        endpoint = running.open_session()["base_url"].removesuffix("/v1")
        answer = httpx.post(f"{endpoint}/{path}", json=body)
        assert (answer.status_code, answer.headers["x-amzn-errortype"]) == (status, kind)
        assert answer.json()["Message"]


def test_at_the_root_headers_name_the_job_and_the_trajectory() -> None:
    engine = ScriptedEngine([ids("four"), ids("five"), ids("six")])
    with job_runtime(engine) as server, job_client(server.url) as client:
        assert sample(client)["choices"][0]["message"]["content"] == "four"
        headers = {"X-Amzn-SageMaker-Job-Arn": ARN, "X-Amzn-SageMaker-Trajectory-Id": "t-1"}
        with openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="EMPTY", default_headers=headers, max_retries=0
        ) as chat:
            assert chat.chat.completions.create(**BODY).choices[0].message.content == "five"
        assert sample(client, "t-2")["choices"][0]["message"]["content"] == "six"
        client.complete_rollout(JobArn=ARN, TrajectoryId="t-1")
        client.update_reward(JobArn=ARN, TrajectoryId="t-1", Rewards=[0.5])
        first, second = (server.core.sessions.get(trajectory_session(ARN, name)) for name in ("t-1", "t-2"))
        assert (len(first.tree.turns), first.result["rewards"]) == (2, [0.5])
        assert (len(second.tree.turns), second.result) == (1, None)
        body = {"JobArn": ARN, "TrajectoryId": "t-1", "Status": "failed"}
        named = headers | {"X-Amzn-SageMaker-Trajectory-Id": "t-2"}
        assert httpx.post(f"{server.url}/complete-rollout", json=body, headers=named).status_code == 409  # t-1 is ready
        for call in (client.complete_rollout, lambda **ids: client.update_reward(**ids, Rewards=[1.0])):
            with pytest.raises(ClientError, match="does not exist") as refused:
                call(JobArn=ARN, TrajectoryId="t-3")
            assert code_of(refused) == "ResourceNotFoundException"
        with pytest.raises(ClientError, match="does not exist"):
            client.complete_rollout(JobArn=ARN.replace("math", "other"), TrajectoryId="t-2")
        assert httpx.post(f"{server.url}/sample", json=BODY).status_code == 400


def test_others_need_the_key_in_any_of_the_forms_that_aws_sends() -> None:
    from agentcore_rl_toolkit.agent.sagemaker.job_rollout import bearer_token

    engine = ScriptedEngine([ids("four")] * 3)
    with job_runtime(engine, trusts=False) as server:
        for key in (None, "AKIDEXAMPLE"):
            with job_client(server.url, key) as client, pytest.raises(ClientError) as refused:
                sample(client)
            assert code_of(refused) == "AccessDeniedException"
        with job_client(server.url, KEY) as client:
            assert sample(client)["choices"][0]["message"]["content"] == "four"
        headers = {"X-Amzn-SageMaker-Job-Arn": ARN, "X-Amzn-SageMaker-Trajectory-Id": "t-1"}
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("AWS_ACCESS_KEY_ID", KEY)
            environment.setenv("AWS_SECRET_ACCESS_KEY", "-")
            tokens = [KEY, bearer_token("us-east-1")]
        for token in tokens:
            sent = headers | {"Authorization": f"Bearer {token}"}
            assert httpx.post(f"{server.url}/v1/chat/completions", json=BODY, headers=sent).status_code == 200
        sent = headers | {"Authorization": "Bearer sagemaker-api-key-%%%"}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=BODY, headers=sent).status_code == 401


CLIENTS = """
from langchain_openai import ChatOpenAI
from strands import Agent
from strands.models.openai import OpenAIModel

@app.rollout_entrypoint
def invoke_agent(payload):
    endpoint, asked = app.model_endpoint(payload), payload["instance"]
    given, sampling = endpoint.client_args, endpoint.sampling_params
    if asked["client"] == "strands":
        model = {"client_args": given, "params": sampling} if asked["given"] else {}
        Agent(OpenAIModel(model_id=endpoint.model_id, **model), callback_handler=None)("two plus two?")
    else:
        model = {**given, **sampling} if asked["given"] else {}
        ChatOpenAI(model=endpoint.model_id, **model).invoke("two plus two?")
    return {"rewards": 1.0}
"""


def test_clients_of_our_app_reach_their_trajectory_with_arguments_and_without(tmp_path: Path) -> None:
    """Without, the environment names the job's model; sampling parameters are the agent's to pass on."""
    engine = ScriptedEngine([ids("four")] * 4)
    cases = [(name, given) for name in ("strands", "langchain") for given in (True, False)]
    with job_runtime(engine) as server, run_agent(CLIENTS, tmp_path) as agent:
        for client, given in cases:
            metadata = {"job_arn": ARN, "trajectory_id": f"{client} {given}", "endpoint": server.url}
            payload = {"instance": {"client": client, "given": given}, "metadata": metadata, "model_name": MODEL}
            answer = agent.invoke({**payload, "inferenceParams": {"temperature": 0.5, "maxTokens": 9}})
            assert answer == (200, {"status": "completed", "rewards": 1.0, "error": None})
        sessions = [server.core.sessions.get(trajectory_session(ARN, f"{name} {given}")) for name, given in cases]
    assert [(len(session.tree.turns), session.result["rewards"]) for session in sessions] == [(1, [1.0])] * 4
    sampled = [(request.sampling.temperature, request.sampling.max_tokens) for request in engine.requests]
    assert (sampled[0], sampled[2]) == ((0.5, 9), (0.5, 9))
