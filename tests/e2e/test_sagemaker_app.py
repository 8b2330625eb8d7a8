"""Rollouts of SageMaker jobs in an app: recognized, run, reported once each, also while the service fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.agent import AgentProcess, run_agent
from support.fake_job_runtime import ARN, FakeJobRuntime, Trajectory
from support.fault_proxy import MORE_FAULTS, FaultProxy
from support.runtime import eventually

QUICK = """
import botocore.session, functools
botocore.session.create_loader = functools.cache(botocore.session.create_loader)
"""
"""Each rollout has a boto3 session of its own, and would read its service's description again: 0.1 s of CPU time."""

AGENT = """
import openai

def ask(payload, **given):
    with openai.OpenAI(max_retries=100, **given) as client:
        message = {"role": "user", "content": str(payload.get("instance") or payload.get("prompt"))}
        reply = client.chat.completions.create(model="policy", messages=[message], **payload.get("sampling", {}))
        return reply.choices[0].message.content

@app.rollout_entrypoint
def invoke_agent(payload):
    if payload.get("prompt") == "who?":
        return "production"
    row = payload.get("instance") or payload
    if row.get("fail"):
        raise ValueError("the agent is broken")
    if row.get("from_environment"):
        ask(payload)
    else:
        endpoint = app.model_endpoint(payload)
        ask({**payload, "sampling": endpoint.sampling_params}, **endpoint.client_args)
    return {"rewards": row.get("rewards")} if "rewards" in row else {}
"""


def request(trajectory: str, endpoint: str, **row: Any) -> dict[str, Any]:
    """A request as the trainer sends it."""
    metadata = {"job_arn": ARN, "trajectory_id": trajectory, "endpoint": endpoint, "region": "us-east-1"}
    return {"instance": row, "metadata": metadata, "inference_params": {"temperature": 0.5, "max_tokens": 64}}


@pytest.fixture
def service() -> Iterator[FakeJobRuntime]:
    with FakeJobRuntime([f"t-{i}" for i in range(100)]).serving() as running:
        yield running


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    with run_agent(QUICK + AGENT, tmp_path) as running:
        yield running


def test_a_rollout_is_completed_and_rewarded_and_its_model_calls_name_it(
    agent: AgentProcess, service: FakeJobRuntime
) -> None:
    status, answer = agent.invoke(request("t-1", service.url, rewards=0.5))
    assert (status, answer["status"], answer["rewards"]) == (200, "completed", 0.5)
    trajectory = service.trajectories["t-1"]
    assert (trajectory.status, trajectory.rewards) == ("ready", [0.5])
    assert trajectory.calls[0]["temperature"] == 0.5
    assert trajectory.calls[0]["max_tokens"] == 64
    reports = [path for path, _ in service.requests if not path.startswith("/v1")]
    assert reports == ["/complete-rollout", "/update-reward"]
    assert agent.ping() == "Healthy"


def test_both_spellings_rewards_per_turn_and_clients_without_arguments(
    agent: AgentProcess, service: FakeJobRuntime
) -> None:
    metadata = {"jobArn": ARN, "rolloutId": "t-2", "endpoint": service.url + "/"}
    payload = {"instance": {"rewards": [0, 1], "from_environment": True}, "metadata": metadata}
    assert agent.invoke({**payload, "inferenceParams": {"maxTokens": 8}})[1]["rewards"] == [0.0, 1.0]
    assert service.trajectories["t-2"].rewards == [0.0, 1.0]
    assert len(service.trajectories["t-2"].calls) == 1


def test_credentials_stay_in_the_container_where_the_endpoint_is_not_awss(
    tmp_path: Path, service: FakeJobRuntime
) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    with run_agent(AGENT, tmp_path, **keys) as agent:
        assert agent.invoke(request("t-3", service.url, rewards=1))[0] == 200
    seen = json.dumps([service.requests, service.headers])
    assert service.trajectories["t-3"].rewards == [1.0]
    assert "AKIDEXAMPLE" not in seen
    assert "sagemaker-api-key" not in seen


def test_a_failure_is_reported_without_a_reward(agent: AgentProcess, service: FakeJobRuntime) -> None:
    answer = agent.invoke(request("t-4", service.url, fail=True))[1]
    assert answer["status"] == "agent_error"
    assert "the agent is broken" in answer["error"]
    assert service.trajectories["t-4"] == Trajectory(
        status="failed", completions=1, tokens=service.trajectories["t-4"].tokens
    )


def test_a_rollout_without_a_reward_is_only_completed(agent: AgentProcess, service: FakeJobRuntime) -> None:
    agent.invoke(request("t-5", service.url))
    assert (service.trajectories["t-5"].status, service.trajectories["t-5"].rewards) == ("ready", None)


def test_a_second_invoke_joins_the_first(agent: AgentProcess, service: FakeJobRuntime) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(agent.invoke, [request("t-6", service.url, rewards=1)] * 4))
    assert [answer["status"] for _, answer in answers] == ["completed"] * 4
    assert len(service.trajectories["t-6"].calls) == 1


def test_a_rollout_runs_once_however_many_others_come_between_its_invokes(
    tmp_path: Path, service: FakeJobRuntime
) -> None:
    waiting = f"""
PLACE = {str(tmp_path)!r}

@app.rollout_entrypoint
def invoke_agent(payload):
    name = payload["metadata"]["trajectory_id"]
    with open(f"{{PLACE}}/started", "a") as file:
        print(name, file=file)
    while not (os.path.exists(f"{{PLACE}}/end {{name}}") or os.path.exists(f"{{PLACE}}/end all")):
        time.sleep(0.05)
    return {{"rewards": 1.0}}
"""
    started = tmp_path / "started"
    started.touch()
    service.trajectories |= {f"more-{i}": Trajectory() for i in range(120)}
    with run_agent(QUICK + waiting, tmp_path) as agent, ThreadPoolExecutor(130) as pool:
        first = pool.submit(agent.invoke, request("more-0", service.url))
        eventually(lambda: started.read_text() == "more-0\n", 60)
        others = [pool.submit(agent.invoke, request(f"more-{i}", service.url)) for i in range(1, 120)]
        eventually(lambda: started.read_text().count("\n") == 120, 120)
        again = pool.submit(agent.invoke, request("more-0", service.url))
        (tmp_path / "end more-0").touch()
        assert first.result()[1] == again.result()[1]
        (tmp_path / "end all").touch()
        assert {other.result()[1]["status"] for other in others} == {"completed"}
        for name in ("t-1", "more-0"):
            assert agent.invoke(request(name, service.url)) == first.result()
    assert started.read_text().splitlines().count("more-0") == 1


def test_any_other_request_is_production(agent: AgentProcess) -> None:
    for extra in ({}, {"metadata": {"trace": "x"}}, {"metadata": "x"}, {"metadata": {"job_arn": ARN}}):
        assert agent.invoke({"prompt": "who?", **extra}) == (200, "production")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"endpoint": "file:///etc/passwd"}, "metadata.endpoint is not a URL"),
        ({"trajectory_id": "t\r\nX-Evil: 1"}, "printable ASCII"),
        ({"trajectory_id": "t" * 300}, "at most 256"),
    ],
)
def test_a_malformed_request_says_what_is_wrong(agent: AgentProcess, metadata: dict[str, str], message: str) -> None:
    payload = request("t-7", "http://127.0.0.1:9")
    payload["metadata"] |= metadata
    status, answer = agent.invoke(payload)
    assert status == 400
    assert message in json.dumps(answer)


def test_a_refused_report_is_logged_whole_or_stored(tmp_path: Path, service: FakeJobRuntime) -> None:
    with run_agent(AGENT, tmp_path) as agent:
        assert agent.invoke(request("nobody", service.url, fail=True))[1]["status"] == "agent_error"
        line = next(line for line in agent.log_lines() if "result_not_stored" in json.dumps(line))
        assert "does not exist" in json.dumps(line)
        assert "the agent is broken" in json.dumps(line)
    service.refusals = ["AccessDeniedException"]
    with run_agent(AGENT, tmp_path, AGENTCORE_RL_S3_BUCKET=str(tmp_path / "results")) as agent:
        agent.invoke(request("t-8", service.url, rewards=1), session_id="s" * 36)
    stored = tmp_path / "results" / "sagemaker" / "math" / "t-8" / f"{'s' * 36}.json"
    assert json.loads(stored.read_text())["rewards"] == 1.0


def test_an_overloaded_service_is_asked_again(agent: AgentProcess, service: FakeJobRuntime) -> None:
    service.refusals = ["ThrottlingException", "ServiceQuotaExceededException", "InternalServiceError"]
    agent.invoke(request("t-9", service.url, rewards=1))
    assert (service.trajectories["t-9"].completions, service.trajectories["t-9"].rewards) == (1, [1.0])


def test_a_rollout_that_is_cut_off_is_reported_as_failed(tmp_path: Path, service: FakeJobRuntime) -> None:
    hanging = """
@app.rollout_entrypoint
def invoke_agent(payload):
    time.sleep(600)
"""
    with run_agent(hanging, tmp_path) as agent, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(agent.invoke, request("t-10", service.url))
        eventually(lambda: agent.ping() == "HealthyBusy")
        agent.process.terminate()
        eventually(lambda: service.trajectories["t-10"].status == "failed")
        waiting.exception(60)
    assert service.trajectories["t-10"].rewards is None


def test_faults_duplicates_and_an_outage_lose_nothing_and_invent_nothing(
    agent: AgentProcess, service: FakeJobRuntime
) -> None:
    """Every report arrives once, while a fifth of all calls fail and the service is down for a while."""
    with FaultProxy(service.url, rate=0.2, faults=(*MORE_FAULTS, "throttled"), seed=1).serving() as proxy:

        def run(i: int) -> Any:
            return agent.invoke(request(f"t-{i}", proxy.url, rewards=i / 100, fail=i % 10 == 9))[1]["status"]

        def interrupt() -> None:
            eventually(lambda: sum(t.completions for t in service.trajectories.values()) > 30, 60)
            proxy.down = True
            eventually(lambda: proxy.counts["down"] > 20, 60)
            proxy.down = False

        with ThreadPoolExecutor(33) as pool:
            outage = pool.submit(interrupt)
            statuses = list(pool.map(run, range(100)))
            outage.result()
    failed = {i for i in range(100) if i % 10 == 9}
    assert [i for i, status in enumerate(statuses) if status != "completed"] == sorted(failed)
    for i in range(100):
        trajectory = service.trajectories[f"t-{i}"]
        expected = ("failed", None, 1, 0) if i in failed else ("ready", [i / 100], 1, 1)
        assert (trajectory.status, trajectory.rewards, trajectory.completions, trajectory.rewardings) == expected
    assert proxy.counts["cut after"] > 0
    assert proxy.counts["twice"] > 0
