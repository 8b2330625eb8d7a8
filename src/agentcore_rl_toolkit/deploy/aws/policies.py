"""The policies of a deployment's roles: the least that works, as documents. Makes no calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..deploy_settings import DeploySettings

Policy = dict[str, Any]
PUSH_ACTIONS = [
    "ecr:BatchCheckLayerAvailability",
    "ecr:CompleteLayerUpload",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
]


@dataclass(frozen=True)
class Place:
    """An account and a region.

    >>> Place("123456789012", "us-west-2").arn("sqs", "results")
    'arn:aws:sqs:us-west-2:123456789012:results'
    """

    account: str
    region: str

    @property
    def partition(self) -> str:
        partitions = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
        return next((name for start, name in partitions.items() if self.region.startswith(start)), "aws")

    @property
    def registry(self) -> str:
        """The host of the account's ECR images."""
        end = ".cn" if self.partition == "aws-cn" else ""
        return f"{self.account}.dkr.ecr.{self.region}.amazonaws.com{end}"

    def arn(self, service: str, resource: str) -> str:
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"

    def role_arn(self, name: str) -> str:
        return f"arn:{self.partition}:iam::{self.account}:role/{name}"


def runtime_trust(place: Place) -> Policy:
    """AgentCore may assume the role, for runtimes of this account and region only."""
    return _trust("bedrock-agentcore.amazonaws.com", place, place.arn("bedrock-agentcore", "*"))


def runtime_policy(place: Place, settings: DeploySettings, bucket: str) -> Policy:
    """A session may pull its image, write its log, store results under the prefix, and announce them."""
    logs = place.arn("logs", f"log-group:/aws/bedrock-agentcore/runtimes/{settings.name}-*")
    objects = "/".join(filter(None, (f"arn:{place.partition}:s3:::{bucket}", settings.prefix, "*")))
    statements = [
        *_pull(place, settings.repository),
        _allow("LogGroup", ["logs:CreateLogGroup", "logs:DescribeLogStreams"], logs),
        _allow("LogLines", ["logs:CreateLogStream", "logs:PutLogEvents"], f"{logs}:log-stream:*"),
        _allow("Results", ["s3:GetObject", "s3:PutObject"], objects),
    ]
    if settings.queue:
        statements.append(_allow("Announcements", ["sqs:SendMessage"], place.arn("sqs", settings.queue)))
    return _document([*statements, *settings.policy_statements()])


def build_trust(place: Place, project: str) -> Policy:
    """CodeBuild may assume the role, for this project only."""
    return _trust("codebuild.amazonaws.com", place, place.arn("codebuild", f"project/{project}"))


def build_policy(place: Place, *, project: str, repository: str, source: str) -> Policy:
    """A build may read its source (`bucket/key`), write its log, and push to the one repository."""
    logs = place.arn("logs", f"log-group:/aws/codebuild/{project}")
    return _document(
        [
            *_pull(place, repository),
            _allow("Push", PUSH_ACTIONS, place.arn("ecr", f"repository/{repository}")),
            _allow("Source", ["s3:GetObject", "s3:GetObjectVersion"], f"arn:{place.partition}:s3:::{source}"),
            _allow("Log", ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"], logs, f"{logs}:*"),
        ]
    )


def _pull(place: Place, repository: str) -> list[Policy]:
    actions = ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    return [
        _allow("Image", actions, place.arn("ecr", f"repository/{repository}")),
        _allow("Registry", ["ecr:GetAuthorizationToken"], "*"),  # IAM allows no narrower resource here
    ]


def _trust(service: str, place: Place, source: str) -> Policy:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": place.account}, "ArnLike": {"aws:SourceArn": source}},
    }
    return _document([statement])


def _allow(sid: str, actions: list[str], *resources: str) -> Policy:
    resource = resources[0] if len(resources) == 1 else list(resources)
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource}


def _document(statements: list[Policy]) -> Policy:
    return {"Version": "2012-10-17", "Statement": statements}
