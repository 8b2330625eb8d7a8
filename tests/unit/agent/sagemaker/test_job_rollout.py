"""Requests of SageMaker jobs, in both spellings, and the token of their model calls."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agentcore_rl_toolkit import AgentCoreConfig
from agentcore_rl_toolkit.agent.model_endpoint import KeyedModel, ModelEnvironment, find_model
from agentcore_rl_toolkit.agent.sagemaker.job_rollout import JobRollout, bearer_token, is_sagemaker
from agentcore_rl_toolkit.errors import ConfigError

ARN = "arn:aws:sagemaker:eu-west-1:123456789012:job/AgentRFT/math"
SNAKE = {"job_arn": ARN, "trajectory_id": "t-1", "endpoint": "http://127.0.0.1:9000", "region": "eu-west-1"}
CAMEL = {"jobArn": ARN, "rolloutId": "t-1", "endpoint": "http://127.0.0.1:9000/"}


@pytest.mark.parametrize(
    "payload",
    [
        {"metadata": SNAKE, "inference_params": {"temperature": 0.7, "max_tokens": 5, "top_p": None}},
        {"metadata": CAMEL, "inferenceParams": {"temperature": 0.7, "maxTokens": 5}},
        {"metadata": CAMEL | {"trajectoryId": "t-1"}, "inferenceParams": {"temperature": 0.7, "maxTokens": 5}},
    ],
)
def test_both_spellings_mean_the_same(payload: dict[str, Any]) -> None:
    expected = JobRollout(
        job_arn=ARN,
        trajectory_id="t-1",
        endpoint="http://127.0.0.1:9000",
        region="eu-west-1",
        base_url="http://127.0.0.1:9000/v1",
        sampling_params={"temperature": 0.7, "max_tokens": 5},
    )
    assert JobRollout.read({"instance": {}, **payload}) == expected


def test_a_model_that_the_trainer_names_wins() -> None:
    named = {"metadata": SNAKE, "model_name": "qwen", "model_endpoint": "http://127.0.0.1:7/v1/"}
    endpoint = find_model(named, AgentCoreConfig(base_url="http://prod/v1", model_id="prod"))
    assert (endpoint.base_url, endpoint.model_id, endpoint.api_key) == ("http://127.0.0.1:7/v1", "qwen", "EMPTY")
    assert endpoint.client_args["default_headers"] == {
        "X-Amzn-SageMaker-Job-Arn": ARN,
        "X-Amzn-SageMaker-Trajectory-Id": "t-1",
    }


def test_a_request_of_the_toolkits_own_is_not_a_jobs() -> None:
    assert JobRollout.read({"metadata": SNAKE, "_rollout": {"exp_id": "e"}}) is None
    for other in (None, [], {}, {"metadata": None}, {"metadata": {"jobArn": ARN}}, {"metadata": {"rolloutId": "t"}}):
        assert JobRollout.read(other) is None


def test_without_a_region_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ConfigError, match="region is unknown"):
        JobRollout.read({"metadata": {"job_arn": "local-job", "trajectory_id": "t"}})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint", "https://evil.example\\\\@job-runtime.sagemaker.us-east-1.api.aws"),
        ("endpoint", "https://evil.example@job-runtime.sagemaker.us-east-1.api.aws"),
        ("endpoint", "https://job-runtime。sagemaker.us-east-1.api.aws"),
        ("region", "evil.example/"),
        ("region", "US EAST"),
    ],
)
def test_an_ambiguous_address_is_refused(field: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"metadata.{field} is not a"):
        JobRollout.read({"metadata": SNAKE | {field: value}})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://job-runtime.sagemaker.us-east-1.api.aws", True),
        ("https://job-runtime.sagemaker.us-gov-west-1.amazonaws.com/v1", True),
        ("https://sagemaker.cn-north-1.amazonaws.com.cn/x", True),
        ("https://runtime-fips.sagemaker.eusc-de-east-1.amazonaws.eu", True),
        ("https://mine.execute-api.us-east-1.amazonaws.com/v1", False),
        ("https://sagemaker.s3.us-east-1.amazonaws.com", False),
        ("https://sagemaker.us-east-1.elb.amazonaws.com", False),
        ("http://job-runtime.sagemaker.us-east-1.api.aws", False),
        ("https://evil-api.aws.example.com", False),
        ("https://evilapi.aws", False),
        ("https://amazonaws.com@evil.example", False),
    ],
)
def test_only_sagemakers_own_hosts_get_credentials(url: str, expected: bool) -> None:
    assert is_sagemaker(url) is expected


def test_the_token_is_a_signed_url_that_names_the_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    prefix, _, encoded = bearer_token("eu-west-1").rpartition("-")
    assert prefix == "sagemaker-api-key"
    url = urlsplit("https://" + base64.b64decode(encoded).decode())
    query = {name: values[0] for name, values in parse_qs(url.query).items()}
    assert url.netloc == "sagemaker.amazonaws.com"
    assert (query["Action"], query["Version"], query["X-Amz-Expires"]) == ("CallWithBearerToken", "1", "43200")
    assert query["X-Amz-Credential"].startswith("AKIDEXAMPLE/")
    assert query["X-Amz-Credential"].endswith("/eu-west-1/sagemaker/aws4_request")
    assert len(query["X-Amz-Signature"]) == 64


def test_an_endpoint_of_sagemakers_is_called_with_a_token_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    host = "runtime.sagemaker.eu-west-1.amazonaws.com"
    settings = {"base_url": f"https://{host}/endpoints/math/openai/v1", "model_id": "math"}
    endpoint = find_model({"prompt": "hi"}, AgentCoreConfig(**settings))
    url = base64.b64decode(endpoint.api_key.removeprefix("sagemaker-api-key-")).decode()
    assert "/eu-west-1/sagemaker/" in parse_qs(urlsplit(f"https://{url}").query)["X-Amz-Credential"][0]
    assert find_model({}, AgentCoreConfig(model_api_key="given", **settings)).api_key == "given"
    settings["base_url"] = f"https://{host}.example.com/openai/v1"
    assert find_model({}, AgentCoreConfig(**settings)).api_key == "EMPTY"


def test_two_trajectories_in_one_process_reach_neither() -> None:
    environ: dict[str, str] = {"OPENAI_CUSTOM_HEADERS": "X-Team: a"}
    environment = ModelEnvironment(environ)
    first, second = (KeyedModel("http://job/v1", "EMPTY", (("X-Id", name),)) for name in ("a", "b"))
    environment.enter(first)
    assert environ["OPENAI_CUSTOM_HEADERS"] == "X-Id: a"
    environment.enter(second)
    assert "OPENAI_CUSTOM_HEADERS" not in environ
    assert "invalid" in environ["OPENAI_BASE_URL"]
    environment.leave(first)
    environment.leave(second)
    assert environ == {"OPENAI_CUSTOM_HEADERS": "X-Team: a"}
