"""What the doctor says of SageMaker's jobs and sessions, and of the role that they assume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from agentcore_rl_toolkit.deploy.aws.calls import Aws
from agentcore_rl_toolkit.deploy.aws.policies import Place
from agentcore_rl_toolkit.deploy.doctor.check_sagemaker import check_sagemaker, role_policy
from conftest import AwsServers
from support.fake_sagemaker_jobs import AGENT, FakeSagemakerJobs
from support.iam_simulator import iam_simulator

PLACE = Place("123456789012", "us-west-2")
SERVICES = ["job.sagemaker.amazonaws.com", "sagemaker.amazonaws.com"]


@pytest.fixture
def fake(aws_env: AwsServers, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSagemakerJobs]:
    iam = boto3.client("iam", endpoint_url=aws_env.sqs_url, region_name="us-west-2")
    with FakeSagemakerJobs().serving() as fake, iam_simulator(aws_env.sqs_url, iam) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", fake.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_IAM", url)
        yield fake


def role(aws_env: AwsServers, name: str, services: list[str], policy: list[dict[str, Any]]) -> str:
    iam = boto3.client("iam", endpoint_url=aws_env.sqs_url, region_name="us-west-2")
    trust = {"Effect": "Allow", "Principal": {"Service": services}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
    statements = [{"Effect": "Allow", **one} for one in policy]
    iam.put_role_policy(
        RoleName=name, PolicyName="p", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": statements})
    )
    return str(arn)


def checks(arn: str | None) -> dict[str, Any]:
    return {one.name: one for one in check_sagemaker(Aws("us-west-2"), PLACE, arn, "bucket", AGENT)}


def test_all_is_well_and_what_was_not_tried_is_named(fake: FakeSagemakerJobs, aws_env: AwsServers) -> None:
    found = checks(role(aws_env, "good", SERVICES, role_policy(PLACE, "bucket", AGENT)))
    assert {one.state for one in found.values()} == {"ok"}
    assert "sagemaker:CreateJob" in found["SageMaker jobs"].text
    assert "ExecuteTrainingOperation" in found["SageMaker sessions"].text
    assert all("iam:PassRole" in found[name].text for name in ("SageMaker jobs", "SageMaker sessions"))


def test_a_permission_that_is_missing_is_named(fake: FakeSagemakerJobs, aws_env: AwsServers) -> None:
    fake.refuse["ListJobs"] = ("AccessDeniedException", "no")
    policy = [one for one in role_policy(PLACE, "bucket", AGENT) if "InvokeAgentRuntime" not in str(one)]
    found = checks(role(aws_env, "deaf", SERVICES, policy))
    assert "sagemaker:ListJobs" in found["SageMaker jobs"].fix
    assert f"deaf may not bedrock-agentcore:InvokeAgentRuntime on {AGENT}" in found["SageMaker role"].text


def test_a_service_that_may_not_assume_the_role_is_named(fake: FakeSagemakerJobs, aws_env: AwsServers) -> None:
    found = checks(role(aws_env, "old", SERVICES[1:], role_policy(PLACE, "bucket", AGENT)))["SageMaker role"]
    assert found.text == "job.sagemaker.amazonaws.com may not assume old"
    assert "sts:AssumeRole" in found.fix
