"""Checks of the AWS setup, by trying it; each leaves nothing behind."""

from __future__ import annotations

import json
import re
import urllib.request
import uuid
from collections.abc import Sequence
from typing import Any

from ...errors import AwsRefused
from ..aws.calls import Aws
from ..aws.policies import Place
from ..aws.resources import NO_QUEUE
from ..image import ENGINES, ContainerEngine
from .finding import Check, failed, failed_with, ok, skipped

_AGENTCORE = "bedrock-agentcore.amazonaws.com"


def check_credentials(aws: Aws) -> tuple[list[Check], Place | None]:
    """Whose credentials these are, and for which region."""
    if not aws.region:
        return [failed("region", "no AWS region is set", "set AWS_REGION (in .env too), or give --region")], None
    try:
        identity = aws.read("sts", "get_caller_identity")
    except AwsRefused as error:
        return [failed_with("credentials", error)], None
    checks = [ok("credentials", f"{identity['Arn']}, account {identity['Account']}"), ok("region", aws.region)]
    return checks, Place(str(identity["Account"]), aws.region)


def check_bucket(aws: Aws, bucket: str | None, prefix: str) -> Check:
    """Write, read, list and delete an object where results go."""
    if not bucket:
        return skipped("bucket", "none is known; give --bucket, or deploy first")
    key = "/".join(filter(None, (prefix, ".doctor", uuid.uuid4().hex)))
    try:
        aws.change("s3", "put_object", Bucket=bucket, Key=key, Body=b"{}", IfNoneMatch="*")
        aws.read("s3", "get_object", Bucket=bucket, Key=key)["Body"].read()
        aws.read("s3", "list_objects_v2", Bucket=bucket, Prefix=key)
        aws.change("s3", "delete_object", Bucket=bucket, Key=key)
    except AwsRefused as error:
        if error.code == "NoSuchBucket":
            return failed("bucket", f"the bucket {bucket} does not exist", "create it; `agentcore-rl deploy` does")
        return failed_with("bucket", error)
    store = f"s3://{bucket}/{prefix}".rstrip("/")
    return ok("bucket", f"wrote, read, listed and removed an object under {store}")


def check_queue(aws: Aws, queue: str | None) -> Check:
    """Send a message, and receive and delete it."""
    if not queue:
        return skipped("queue", "the client polls for results; give --sqs-url to have them announced")
    body = json.dumps({"doctor": uuid.uuid4().hex})
    try:
        url = queue if "://" in queue else aws.read("sqs", "get_queue_url", QueueName=queue)["QueueUrl"]
        aws.change("sqs", "send_message", QueueUrl=url, MessageBody=body)
        deleted = any(_delete_message(aws, url, body) for _ in range(10))
    except AwsRefused as error:
        if error.code in NO_QUEUE:
            fix = "create it; `agentcore-rl deploy --sqs-url` does"
            return failed("queue", f"the queue {queue} does not exist", fix)
        return failed_with("queue", error)
    left = "" if deleted else "; the message itself was not received, and the next client will drop it"
    return ok("queue", f"sent to and received from {url}{left}")


def _delete_message(aws: Aws, url: str, body: str) -> bool:
    """Receive some messages, and delete the one with `body`; the others stay visible."""
    params: dict[str, Any] = {"MaxNumberOfMessages": 10, "VisibilityTimeout": 0, "WaitTimeSeconds": 1}
    for message in aws.read("sqs", "receive_message", QueueUrl=url, **params).get("Messages", []):
        if message["Body"] == body:
            aws.change("sqs", "delete_message", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            return True
    return False


def check_role(
    aws: Aws,
    role: str | None,
    needed: list[dict[str, Any]],
    *,
    name: str = "role",
    services: Sequence[str] = (_AGENTCORE,),
    fix: str = f"let {_AGENTCORE} assume it (sts:AssumeRole); `agentcore-rl deploy` creates such a role",
) -> Check:
    """Whether the services may assume the role, and whether IAM allows it the `needed` statements."""
    if not role:
        return skipped(name, "none is known; give --role-arn, or deploy first" if name == "role" else "none is named")
    title = role.rpartition("/")[2]
    try:
        found = aws.read("iam", "get_role", RoleName=title)["Role"]
        trusted = json.dumps(found["AssumeRolePolicyDocument"])
        missing = [one for one in services if not re.search(rf"(?<![\w.-]){re.escape(one)}(?![\w.-])", trusted)]
        if missing:
            who = "AgentCore" if missing == [_AGENTCORE] else " and ".join(missing)
            return failed(name, f"{who} may not assume {title}", fix)
        denied = [text for statement in needed for text in _denied(aws, found["Arn"], statement)]
    except AwsRefused as error:
        return failed_with(name, error)
    if denied:
        done = "; `agentcore-rl deploy` does" if name == "role" else ""
        return failed(name, f"{title} may not {', '.join(denied)}", f"allow it{done}")
    return ok(name, f"{title} may do all that {'sessions need' if name == 'role' else 'SageMaker needs'}")


def _denied(aws: Aws, arn: str, statement: dict[str, Any]) -> list[str]:
    # The simulator reads * as a name, so put a name in its place.
    resource = "*" if statement["Resource"] == "*" else str(statement["Resource"]).replace("*", "doctor")
    params = {"PolicySourceArn": arn, "ActionNames": statement["Action"], "ResourceArns": [resource]}
    results = aws.read("iam", "simulate_principal_policy", **params)["EvaluationResults"]
    return [f"{one['EvalActionName']} on {resource}" for one in results if one["EvalDecision"] != "allowed"]


def check_image(aws: Aws | None, image: str | None, local: str) -> Check:
    """Whether the agent's image, in ECR or else `local` on this machine, is built for arm64."""
    platform, name = None, image or local
    try:
        if image is not None and aws is not None:
            platform = _platform_in_ecr(aws, image)
    except AwsRefused as error:
        return failed_with("image", error)
    for engine in ENGINES:
        platform = platform or ContainerEngine(engine).platform(name)
    if platform is None:
        return skipped("image", "none is built yet; agentcore-rl build")
    if "arm64" not in platform:
        fix = "build it for linux/arm64: agentcore-rl build (without --local)"
        return failed("image", f"{name} is for {platform}, but AgentCore runs arm64", fix)
    return ok("image", f"{name} is for {platform}")


def _platform_in_ecr(aws: Aws, image: str) -> str | None:
    """The platforms of an image in ECR, from its manifest or from the configuration that the manifest names."""
    repository, _, tag = image.partition("/")[2].partition(":")
    params: dict[str, Any] = {"repositoryName": repository, "imageIds": [{"imageTag": tag}]}
    answer = aws.read("ecr", "batch_get_image", missing=("RepositoryNotFoundException",), **params)
    if not answer or not answer["images"]:
        return None
    manifest = json.loads(answer["images"][0]["imageManifest"])
    if "manifests" in manifest:
        platforms = [one.get("platform", {}) for one in manifest["manifests"]]
        return ", ".join(f"{one.get('os')}/{one.get('architecture')}" for one in platforms)
    layer = {"repositoryName": repository, "layerDigest": manifest["config"]["digest"]}
    url = aws.read("ecr", "get_download_url_for_layer", **layer)["downloadUrl"]
    with urllib.request.urlopen(url, timeout=30) as response:
        config = json.load(response)
    return f"{config.get('os')}/{config.get('architecture')}"
