"""Checks for SageMaker's multi-turn RL jobs and training sessions: what the credentials and SageMaker's role may do.

Tries read-only calls. Of calls that create resources, it only names the permissions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import AwsRefused
from ..aws.calls import Aws
from ..aws.policies import Place
from .check_aws import check_role
from .finding import Check, failed_with, ok

JOB_SERVICE, SESSION_SERVICE = "job.sagemaker.amazonaws.com", "sagemaker.amazonaws.com"
_JOB_ACTIONS = "sagemaker:CreateJob, DescribeJob and StopJob, logs:FilterLogEvents"
_SESSION_ACTIONS = (
    "sagemaker:CreateTrainingSession, DescribeTrainingSession, StopTrainingSession, ExecuteTrainingOperation, "
    "GetTrainingOperationResult, ExecuteSamplingOperation and GetSamplingOperationResult"
)
_BOTH = (
    "iam:PassRole, sagemaker:DescribeHubContent, sagemaker:CreateModelPackageGroup and DescribeModelPackageGroup, "
    "and s3:PutObject, s3:ListBucket and s3:DeleteObject on its output"
)


def check_sagemaker(aws: Aws, place: Place, role: str | None, bucket: str | None, arn: str | None) -> Iterator[Check]:
    """What `train --backend sagemaker` and `sagemaker-session` need."""
    yield _try(aws, "SageMaker jobs", "list_jobs", f"{_JOB_ACTIONS}; {_BOTH}", JobCategory="AgentRFT", MaxResults=1)
    yield _try(aws, "SageMaker sessions", "list_training_sessions", f"{_SESSION_ACTIONS}; {_BOTH}", MaxResults=1)
    needed = role_policy(place, bucket, arn)
    fix = f"let {JOB_SERVICE} (jobs) and {SESSION_SERVICE} (sessions) assume it (sts:AssumeRole)"
    yield check_role(aws, role, needed, name="SageMaker role", services=(JOB_SERVICE, SESSION_SERVICE), fix=fix)


def role_policy(place: Place, bucket: str | None, arn: str | None) -> list[dict[str, Any]]:
    """What SageMaker's role has to be allowed: its output, its model packages and, for jobs, the agent."""
    objects = f"arn:{place.partition}:s3:::{bucket or 'unknown'}"
    statements = [
        {"Action": ["s3:GetObject", "s3:PutObject"], "Resource": f"{objects}/*"},
        {"Action": ["s3:ListBucket"], "Resource": objects},
        {"Action": ["sagemaker:CreateModelPackage"], "Resource": place.arn("sagemaker", "model-package/*")},
    ]
    if arn is not None:
        statements.append({"Action": ["bedrock-agentcore:InvokeAgentRuntime"], "Resource": arn})
    return statements


def _try(aws: Aws, name: str, operation: str, others: str, **params: Any) -> Check:
    try:
        aws.read("sagemaker", operation, **params)
    except AwsRefused as error:
        return failed_with(name, error)
    return ok(name, f"your credentials may list them; a run also needs {others}")
