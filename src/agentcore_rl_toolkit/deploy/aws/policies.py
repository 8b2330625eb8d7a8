"""What the roles of a deployment may do, and who may take them on: the least that works, as documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Policy = dict[str, Any]
PUSH = (
    "ecr:BatchCheckLayerAvailability",
    "ecr:CompleteLayerUpload",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
)
"""What it takes to push to a repository, beside logging in."""


@dataclass(frozen=True)
class Place:
    """An account and a region."""

    account: str
    region: str

    @property
    def partition(self) -> str:
        """AWS's own split of the world.

        >>> Place("1", "cn-north-1").partition
        'aws-cn'
        """
        kinds = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
        return next((kind for start, kind in kinds.items() if self.region.startswith(start)), "aws")

    @property
    def registry(self) -> str:
        """The host of its images."""
        end = ".cn" if self.partition == "aws-cn" else ""
        return f"{self.account}.dkr.ecr.{self.region}.amazonaws.com{end}"

    def arn(self, service: str, resource: str) -> str:
        """A resource of the account and region.

        >>> Place("123456789012", "us-west-2").arn("sqs", "results")
        'arn:aws:sqs:us-west-2:123456789012:results'
        """
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"


def runtime_trust(place: Place) -> Policy:
    """AgentCore may take the role on, for runtimes of this account and region only."""
    return _trust("bedrock-agentcore.amazonaws.com", place, place.arn("bedrock-agentcore", "*"))


def runtime_policy(
    place: Place,
    *,
    name: str,
    repository: str,
    bucket: str,
    prefix: str,
    queue: str | None = None,
    further: Sequence[Mapping[str, Any]] = (),
) -> Policy:
    """What a session may do: pull its image, write its log, store results under the prefix, and announce them."""
    logs = place.arn("logs", f"log-group:/aws/bedrock-agentcore/runtimes/{name}-*")
    objects = f"arn:{place.partition}:s3:::{bucket}/{prefix}/*" if prefix else f"arn:{place.partition}:s3:::{bucket}/*"
    statements = [
        *_pull(place, repository),
        _allow("LogGroup", ["logs:CreateLogGroup", "logs:DescribeLogStreams"], logs),
        _allow("LogLines", ["logs:CreateLogStream", "logs:PutLogEvents"], f"{logs}:log-stream:*"),
        _allow("Results", ["s3:GetObject", "s3:PutObject"], objects),
    ]
    if queue:
        statements.append(_allow("Announcements", ["sqs:SendMessage"], place.arn("sqs", queue)))
    return _policy([*statements, *(dict(statement) for statement in further)])


def build_trust(place: Place, project: str) -> Policy:
    """CodeBuild may take the role on, for this project only."""
    return _trust("codebuild.amazonaws.com", place, place.arn("codebuild", f"project/{project}"))


def build_policy(place: Place, *, project: str, repository: str, bucket: str, key: str) -> Policy:
    """What a build may do: read its source, write its log, and push to the one repository."""
    logs = place.arn("logs", f"log-group:/aws/codebuild/{project}")
    return _policy(
        [
            *_pull(place, repository),
            _allow("Push", list(PUSH), place.arn("ecr", f"repository/{repository}")),
            _allow("Source", ["s3:GetObject", "s3:GetObjectVersion"], f"arn:{place.partition}:s3:::{bucket}/{key}"),
            _allow("Log", ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"], logs, f"{logs}:*"),
        ]
    )


def _pull(place: Place, repository: str) -> list[Policy]:
    return [
        _allow(
            "Image",
            ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            place.arn("ecr", f"repository/{repository}"),
        ),
        _allow("Registry", ["ecr:GetAuthorizationToken"], "*"),  # AWS knows no narrower resource for it
    ]


def _trust(service: str, place: Place, source: str) -> Policy:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": place.account}, "ArnLike": {"aws:SourceArn": source}},
    }
    return _policy([statement])


def _allow(sid: str, actions: list[str], *resources: str) -> Policy:
    where = resources[0] if len(resources) == 1 else list(resources)
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": where}


def _policy(statements: list[Policy]) -> Policy:
    return {"Version": "2012-10-17", "Statement": statements}
