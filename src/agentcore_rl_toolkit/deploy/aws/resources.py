"""The AWS resources of a deployment other than the runtime: create what is missing, and delete what was created.

An `ensure_…` method changes only what differs, and records what it creates. It uses a bucket, queue or repository that
existed before as it is, and refuses a role of the same name that the toolkit did not create.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ...errors import AwsRefused, ConfigError
from .calls import Aws
from .policies import Place, Policy
from .state import State

TAG = "agentcore-rl-toolkit"
"""The tag on everything the toolkit creates; its value is the runtime's name."""
NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
_GONE = {"NoSuchBucket", "404", "NoSuchEntity", "RepositoryNotFoundException"}
_IN_USE = {
    "BucketNotEmpty": "it has results; remove it with: aws s3 rb --force s3://{}",
    "DeleteConflict": "it has policies that the toolkit did not attach",
    "RepositoryNotEmptyException": "it has images that were not pushed from here",
}


@dataclass(frozen=True)
class Resources:
    """Creates the resources of the runtime `owner` in one account and region."""

    aws: Aws
    state: State
    place: Place
    owner: str

    def record(self, kind: str, name: str) -> None:
        """Record a created resource, unless this is a dry run."""
        if not self.aws.dry_run:
            self.state.add(kind, name)

    def ensure_repository(self, name: str) -> bool:
        """Create an ECR repository; True if it existed."""
        missing, params = ("RepositoryNotFoundException",), {"repositoryNames": [name]}
        existed = self.aws.read("ecr", "describe_repositories", missing=missing, **params) is not None
        if not existed:
            tags = [{"Key": TAG, "Value": self.owner}]
            scan = {"scanOnPush": True}
            self.aws.change("ecr", "create_repository", repositoryName=name, imageScanningConfiguration=scan, tags=tags)
            self.record("repository", name)
        return existed

    def has_image(self, repository: str, tag: str) -> bool:
        missing = ("ImageNotFoundException", "RepositoryNotFoundException")
        params: dict[str, Any] = {"repositoryName": repository, "imageIds": [{"imageTag": tag}]}
        return self.aws.read("ecr", "describe_images", missing=missing, **params) is not None

    def ensure_bucket(self, name: str) -> None:
        """Create a bucket, closed to the public."""
        try:
            if self.aws.read("s3", "head_bucket", missing=("404", "NoSuchBucket"), Bucket=name) is not None:
                return
        except AwsRefused as refused:
            if refused.code != "403":
                raise
            hint = f"allow your credentials s3:ListBucket on {name}, or choose another --bucket"
            raise ConfigError(f"your credentials may not access the bucket {name}", hint=hint) from None
        region = self.place.region
        constraint = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        self.aws.change("s3", "create_bucket", Bucket=name, **constraint)
        self.record("bucket", name)
        options = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
        block = dict.fromkeys(options, True)
        self.aws.change("s3", "put_public_access_block", Bucket=name, PublicAccessBlockConfiguration=block)

    def ensure_queue(self, name: str) -> str:
        """Create an SQS queue; returns its URL."""
        answer = self.aws.read("sqs", "get_queue_url", missing=NO_QUEUE, QueueName=name)
        if answer is None:
            answer = self.aws.change("sqs", "create_queue", QueueName=name, tags={TAG: self.owner})
            self.record("queue", name)
        return str(answer.get("QueueUrl") or f"<the URL of {name}>")

    def ensure_role(self, name: str, trust: Policy, policy: Policy) -> str:
        """Create or correct a role with exactly this trust and this policy; returns its ARN."""
        answer = self.aws.read("iam", "get_role", missing=("NoSuchEntity",), RoleName=name)
        held = None
        if answer is None:
            tags = [{"Key": TAG, "Value": self.owner}]
            params = {"RoleName": name, "AssumeRolePolicyDocument": json.dumps(trust), "Tags": tags}
            self.aws.change("iam", "create_role", **params)
            self.record("role", name)
        else:
            self._check_owner(name, answer["Role"])
            if answer["Role"]["AssumeRolePolicyDocument"] != trust:
                self.aws.change("iam", "update_assume_role_policy", RoleName=name, PolicyDocument=json.dumps(trust))
            params = {"RoleName": name, "PolicyName": TAG}
            held = self.aws.read("iam", "get_role_policy", missing=("NoSuchEntity",), **params)
        if held is None or held["PolicyDocument"] != policy:
            document = json.dumps(policy)
            self.aws.change("iam", "put_role_policy", RoleName=name, PolicyName=TAG, PolicyDocument=document)
        return self.place.role_arn(name) if answer is None else str(answer["Role"]["Arn"])

    def _check_owner(self, name: str, role: dict[str, Any]) -> None:
        if {"Key": TAG, "Value": self.owner} in role.get("Tags", []):
            self.record("role", name)  # a deploy from another copy of the folder created it
        elif not self.state.has("role", name):
            hint = f"use it as it is with --role-arn {role['Arn']}, or choose another --name"
            raise ConfigError(f"the role {name} exists, and this toolkit did not create it", hint=hint)


def delete_resource(aws: Aws, kind: str, name: str) -> str | None:
    """Delete a recorded resource; returns None, or why it was left. A resource that is gone already counts as deleted.

    The name of an image is `repository:tag`, that of an object `bucket/key`.
    """
    if kind == "image":
        repository, _, tag = name.partition(":")
        return _delete(aws, "ecr", "batch_delete_image", repositoryName=repository, imageIds=[{"imageTag": tag}])
    if kind == "object":
        bucket, _, key = name.partition("/")
        return _delete(aws, "s3", "delete_object", Bucket=bucket, Key=key)
    if kind == "queue":
        answer = aws.read("sqs", "get_queue_url", missing=NO_QUEUE, QueueName=name)
        return _delete(aws, "sqs", "delete_queue", QueueUrl=answer["QueueUrl"]) if answer else None
    if kind == "role":
        _delete(aws, "iam", "delete_role_policy", RoleName=name, PolicyName=TAG)
    service, parameter = {
        "bucket": ("s3", "Bucket"),
        "project": ("codebuild", "name"),
        "repository": ("ecr", "repositoryName"),
        "role": ("iam", "RoleName"),
    }[kind]
    return _delete(aws, service, f"delete_{kind}", **{parameter: name})


def _delete(aws: Aws, service: str, operation: str, **params: Any) -> str | None:
    try:
        aws.change(service, operation, **params)
    except AwsRefused as refused:
        if refused.code in _IN_USE:
            return _IN_USE[refused.code].format(*params.values())
        if refused.code not in _GONE:
            raise
    return None
