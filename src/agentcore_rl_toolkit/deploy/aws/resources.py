"""What a deployment needs on AWS beside the runtime: each function leaves it as it should be, and notes what it made.

What was there before is used, never changed and never noted; a role of our name that isn't ours is refused.
"""

from __future__ import annotations

import json
import time
from typing import Any

from ...errors import AwsRefused, ConfigError
from .calls import Aws
from .policies import Place, Policy
from .state import State

TAG = "agentcore-rl-toolkit"
"""The tag of what we made; its value is the runtime's name."""


def ensure_repository(aws: Aws, state: State, name: str, owner: str) -> bool:
    """An ECR repository; True if it was there."""
    known = aws.read("ecr", "describe_repositories", missing=("RepositoryNotFoundException",), repositoryNames=[name])
    if known is None:
        aws.change(
            "ecr",
            "create_repository",
            repositoryName=name,
            imageScanningConfiguration={"scanOnPush": True},
            tags=[{"Key": TAG, "Value": owner}],
        )
        _made(aws, state, "repository", name)
    return known is not None


def has_image(aws: Aws, repository: str, tag: str) -> bool:
    """Whether an image of that tag was pushed."""
    missing = ("ImageNotFoundException", "RepositoryNotFoundException")
    params: dict[str, Any] = {"repositoryName": repository, "imageIds": [{"imageTag": tag}]}
    return aws.read("ecr", "describe_images", missing=missing, **params) is not None


def ensure_bucket(aws: Aws, state: State, name: str, place: Place) -> None:
    """A bucket of this account that the public can't read."""
    try:
        known = aws.read("s3", "head_bucket", missing=("404", "NoSuchBucket"), Bucket=name)
    except AwsRefused as refused:
        if refused.code != "403":
            raise
        hint = f"allow your credentials s3:ListBucket on {name}, or choose another --bucket if it is somebody else's"
        raise ConfigError(f"the bucket {name} is there, and your credentials may not see into it", hint=hint) from None
    if known is not None:
        return
    where = {} if place.region == "us-east-1" else {"LocationConstraint": place.region}
    more: dict[str, Any] = {"CreateBucketConfiguration": where} if where else {}
    aws.change("s3", "create_bucket", Bucket=name, **more)
    _made(aws, state, "bucket", name)
    closed = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    aws.change("s3", "put_public_access_block", Bucket=name, PublicAccessBlockConfiguration=dict.fromkeys(closed, True))


def ensure_queue(aws: Aws, state: State, name: str, owner: str) -> str:
    """The URL of a queue."""
    missing = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
    known = aws.read("sqs", "get_queue_url", missing=missing, QueueName=name)
    if known is None:
        known = aws.change("sqs", "create_queue", QueueName=name, tags={TAG: owner})
        _made(aws, state, "queue", name)
    return str(known.get("QueueUrl") or f"<the URL of {name}>")


def ensure_role(aws: Aws, state: State, name: str, trust: Policy, policy: Policy, place: Place, owner: str) -> str:
    """The ARN of a role with exactly this trust and this policy."""
    arn = f"arn:{place.partition}:iam::{place.account}:role/{name}"
    known = aws.read("iam", "get_role", missing=("NoSuchEntity",), RoleName=name)
    if known is None:
        tags = [{"Key": TAG, "Value": owner}]
        params = {"RoleName": name, "AssumeRolePolicyDocument": json.dumps(trust), "Tags": tags}
        arn = aws.change("iam", "create_role", **params).get("Role", {}).get("Arn", arn)
        _made(aws, state, "role", name)
    else:
        arn = known["Role"]["Arn"]
        if {"Key": TAG, "Value": owner} in known["Role"].get("Tags", []):
            _made(aws, state, "role", name)  # from another copy of the folder
        elif not state.has("role", name):
            hint = f"use it as it is with --role {arn}, or choose another --name"
            raise ConfigError(f"there is a role {name} that this toolkit didn't make", hint=hint)
        if known["Role"]["AssumeRolePolicyDocument"] != trust:
            aws.change("iam", "update_assume_role_policy", RoleName=name, PolicyDocument=json.dumps(trust))
    given = {"RoleName": name, "PolicyName": TAG}
    held = aws.read("iam", "get_role_policy", missing=("NoSuchEntity",), **given) if known else None
    if held is None or held["PolicyDocument"] != policy:
        aws.change("iam", "put_role_policy", **given, PolicyDocument=json.dumps(policy))
    return str(arn)


def remove(aws: Aws, item: dict[str, str]) -> str | None:
    """Remove something that was made; None, or why it was left."""
    left: str | None = _REMOVERS[item["kind"]](aws, item["name"])
    return left


def remove_image(aws: Aws, name: str) -> None:
    repository, _, tag = name.partition(":")
    params: dict[str, Any] = {"repositoryName": repository, "imageIds": [{"imageTag": tag}]}
    _gone(aws, "ecr", "batch_delete_image", ("RepositoryNotFoundException",), **params)


def _remove_repository(aws: Aws, name: str) -> str | None:
    try:
        _gone(aws, "ecr", "delete_repository", ("RepositoryNotFoundException",), repositoryName=name)
    except AwsRefused as refused:
        if refused.code == "RepositoryNotEmptyException":
            return "it has images that were not pushed from here"
        raise
    return None


def _remove_object(aws: Aws, name: str) -> None:
    bucket, _, key = name.partition("/")
    _gone(aws, "s3", "delete_object", ("NoSuchBucket",), Bucket=bucket, Key=key)


def _remove_bucket(aws: Aws, name: str) -> str | None:
    try:
        _gone(aws, "s3", "delete_bucket", ("NoSuchBucket", "404"), Bucket=name)
    except AwsRefused as refused:
        if refused.code == "BucketNotEmpty":
            return f"it has results; remove it with: aws s3 rb --force s3://{name}"
        raise
    return None


def _remove_queue(aws: Aws, name: str) -> None:
    missing = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
    known = aws.read("sqs", "get_queue_url", missing=missing, QueueName=name)
    if known is not None:
        aws.change("sqs", "delete_queue", QueueUrl=known["QueueUrl"])


def _remove_role(aws: Aws, name: str) -> str | None:
    _gone(aws, "iam", "delete_role_policy", ("NoSuchEntity",), RoleName=name, PolicyName=TAG)
    try:
        _gone(aws, "iam", "delete_role", ("NoSuchEntity",), RoleName=name)
    except AwsRefused as refused:
        if refused.code == "DeleteConflict":
            return "somebody has attached further policies to it"
        raise
    return None


def _remove_project(aws: Aws, name: str) -> None:
    _gone(aws, "codebuild", "delete_project", (), name=name)


_REMOVERS: dict[str, Any] = {
    "bucket": _remove_bucket,
    "image": remove_image,
    "object": _remove_object,
    "project": _remove_project,
    "queue": _remove_queue,
    "repository": _remove_repository,
    "role": _remove_role,
}


def _made(aws: Aws, state: State, kind: str, name: str) -> None:
    if not aws.dry_run:
        state.note(kind, name)


def _gone(aws: Aws, service: str, operation: str, missing: tuple[str, ...], **params: Any) -> None:
    """Delete; what is gone already is fine."""
    try:
        aws.change(service, operation, **params)
    except AwsRefused as refused:
        if refused.code not in missing:
            raise


def wait_for(seconds: float, pause: float, ready: Any, what: str) -> Any:
    """Ask until there is an answer."""
    deadline = time.monotonic() + seconds
    while (found := ready()) is None:
        if time.monotonic() > deadline:
            raise ConfigError(f"{what} took longer than {seconds:g} s", hint="look in the AWS console; run it again")
        time.sleep(pause)
    return found
