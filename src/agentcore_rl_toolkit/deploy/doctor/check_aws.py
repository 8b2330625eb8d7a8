"""What a deployment needs of AWS, by trying: each check leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import urllib.request
import uuid
from typing import Any
from urllib.parse import urlsplit

from ...errors import AgentCoreRLError, AwsRefused, RuntimeFault
from ...runtime.aws import AgentCoreRuntime
from ..aws.calls import Aws
from ..aws.policies import Place
from ..image import ENGINES, Engine
from .check import Check, failed, ok, refused, skipped

_HERE = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


def check_credentials(aws: Aws) -> tuple[list[Check], Place | None]:
    """Whose they are, and where."""
    if not aws.region:
        return [failed("region", "there is none", "set AWS_REGION (in .env too), or give --region")], None
    try:
        who = aws.identity()
    except AwsRefused as error:
        return [refused("credentials", error)], None
    checks = [ok("credentials", f"{who['Arn']}, account {who['Account']}"), ok("region", aws.region)]
    return checks, Place(str(who["Account"]), aws.region)


def check_bucket(aws: Aws, bucket: str | None, prefix: str) -> Check:
    """Write, read, list and remove an object where results go."""
    if not bucket:
        return skipped("bucket", "none is known; give --bucket, or deploy first")
    key = "/".join(filter(None, (prefix, ".doctor", uuid.uuid4().hex)))
    store = f"s3://{bucket}/{prefix}".rstrip("/")
    try:
        aws.change("s3", "put_object", Bucket=bucket, Key=key, Body=b"{}", IfNoneMatch="*")
        aws.read("s3", "get_object", Bucket=bucket, Key=key)["Body"].read()
        aws.read("s3", "list_objects_v2", Bucket=bucket, Prefix=key)
        aws.change("s3", "delete_object", Bucket=bucket, Key=key)
    except AwsRefused as error:
        if error.code == "NoSuchBucket":
            return failed("bucket", f"there is no bucket {bucket}", "create it; `agentcore-rl deploy` does")
        return refused("bucket", error)
    return ok("bucket", f"wrote, read, listed and removed an object under {store}")


def check_queue(aws: Aws, queue: str | None) -> Check:
    """Announce something nobody waits for, and take it back: whether messages can be sent, read and removed."""
    if not queue:
        return skipped("queue", "results are polled for; give --queue to have them announced")
    body = json.dumps({"doctor": uuid.uuid4().hex})
    try:
        url = queue if "://" in queue else aws.read("sqs", "get_queue_url", QueueName=queue)["QueueUrl"]
        aws.change("sqs", "send_message", QueueUrl=url, MessageBody=body)
        found = any(_take_back(aws, url, body) for _ in range(10))
    except AwsRefused as error:
        if error.code in ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"):
            return failed("queue", f"there is no queue {queue}", "create it; `agentcore-rl deploy --queue` does")
        return refused("queue", error)
    left = "" if found else "; the message was not among those received, and is left there for the next client to drop"
    return ok("queue", f"sent to and received from {url}{left}")


def _take_back(aws: Aws, url: str, body: str) -> bool:
    """Look at some messages, and remove ours if it is among them; the others stay visible."""
    few: dict[str, Any] = {"MaxNumberOfMessages": 10, "VisibilityTimeout": 0, "WaitTimeSeconds": 1}
    for message in aws.read("sqs", "receive_message", QueueUrl=url, **few).get("Messages", []):
        if message["Body"] == body:
            aws.change("sqs", "delete_message", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            return True
    return False


def check_role(aws: Aws, role: str | None, needed: list[dict[str, Any]]) -> Check:
    """Whether AgentCore may take the role on, and whether it may do what sessions need, as IAM decides it."""
    if not role:
        return skipped("role", "none is known; give --role, or deploy first")
    name = role.rpartition("/")[2]
    try:
        known = aws.read("iam", "get_role", RoleName=name)["Role"]
        trusted = json.dumps(known["AssumeRolePolicyDocument"])
        if "bedrock-agentcore.amazonaws.com" not in trusted:
            fix = "trust bedrock-agentcore.amazonaws.com with sts:AssumeRole; `agentcore-rl deploy` makes such a role"
            return failed("role", f"AgentCore may not take on {name}", fix)
        denied = [f"{action} on {resource}" for action, resource in _denied(aws, known["Arn"], needed)]
    except AwsRefused as error:
        return refused("role", error)
    if denied:
        return failed("role", f"{name} may not {', '.join(denied)}", "allow it; `agentcore-rl deploy` does")
    return ok("role", f"{name} may do all that sessions need")


def _denied(aws: Aws, arn: str, needed: list[dict[str, Any]]) -> list[tuple[str, str]]:
    denied = []
    for statement in needed:
        # A wildcard asks for nothing in particular: some name below it does.
        resource = str(statement["Resource"]).replace("*", "doctor") if statement["Resource"] != "*" else "*"
        answer = aws.read(
            "iam",
            "simulate_principal_policy",
            PolicySourceArn=arn,
            ActionNames=statement["Action"],
            ResourceArns=[resource],
        )
        results = answer["EvaluationResults"]
        denied += [(r["EvalActionName"], resource) for r in results if r["EvalDecision"] != "allowed"]
    return denied


def check_image(aws: Aws | None, image: str | None, local: str) -> Check:
    """What the agent's image was built for: the one in ECR, or one that was built here."""
    found = None
    try:
        if image is not None and aws is not None:
            found = _in_ecr(aws, image)
        for name in ENGINES if found is None else ():
            found = found or _built_here(name, image or local)
    except AwsRefused as error:
        return refused("image", error)
    if found is None:
        return skipped("image", "none has been built; agentcore-rl build")
    if "arm64" not in found:
        fix = "build it for linux/arm64: agentcore-rl build (without --local)"
        return failed("image", f"{image or local} is for {found}, and AgentCore runs arm64", fix)
    return ok("image", f"{image or local} is for {found}")


def _built_here(name: str, image: str) -> str | None:
    try:
        return Engine(name).platform(image)
    except OSError:  # it isn't installed
        return None


def _in_ecr(aws: Aws, image: str) -> str | None:
    """The architectures of an image in ECR, by its manifest, or by the configuration that this names."""
    repository, _, tag = image.partition("/")[2].partition(":")
    named: dict[str, Any] = {"repositoryName": repository, "imageIds": [{"imageTag": tag}]}
    answer = aws.read("ecr", "batch_get_image", missing=("RepositoryNotFoundException",), **named)
    if not answer or not answer["images"]:
        return None
    manifest = json.loads(answer["images"][0]["imageManifest"])
    if "manifests" in manifest:
        platforms = [known.get("platform", {}) for known in manifest["manifests"]]
        return ", ".join(f"{one.get('os')}/{one.get('architecture')}" for one in platforms)
    layer = {"repositoryName": repository, "layerDigest": manifest["config"]["digest"]}
    url = aws.read("ecr", "get_download_url_for_layer", **layer)["downloadUrl"]
    with urllib.request.urlopen(url, timeout=30) as response:
        config = json.load(response)
    return f"{config.get('os')}/{config.get('architecture')}"


def check_gateway(url: str | None, arn: str | None, vpc: bool) -> Check:
    """Whether sessions can call the gateway: from within one, where there is a runtime; else from here."""
    if not url:
        return skipped("gateway", "no address is known; give --gateway URL")
    health = f"{url.rstrip('/')}/health"
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        return failed("gateway", f"{url!r} is not a URL", "write it as https://gateway.example.com")
    if arn is not None:
        return _from_session(arn, health)
    if urlsplit(url).hostname in _HERE and not vpc:
        return failed("gateway", f"sessions on AWS can't reach {url}", "serve it at an address that they can reach")
    try:
        with urllib.request.urlopen(health, timeout=10) as response:
            response.read()
    except OSError as error:
        return failed("gateway", f"{health}: {error}", "start it: agentcore-rl gateway serve --host 0.0.0.0 …")
    return ok("gateway", f"{url} answers from here; whether it does from a session is known once one is deployed")


def _from_session(arn: str, health: str) -> Check:
    code = shlex.quote(f"import urllib.request as r; print(r.urlopen({health!r}, timeout=20).status)")
    try:
        status, said = asyncio.run(
            _command(arn, " || ".join(f"{python} -c {code}" for python in ("python3", "python")))
        )
    except AgentCoreRLError as error:
        return failed("gateway", f"no session could try it: {error}", "deploy the agent, or leave --gateway out")
    if status == 0 and "200" in said:
        return ok("gateway", f"a session of the runtime reached {health}")
    reason = (said.strip().splitlines() or ["no output"])[-1]
    fix = "open its port to the sessions' network; in a VPC, check subnets and security groups"
    return failed("gateway", f"a session of the runtime can't reach {health}: {reason[:200]}", fix)


async def _command(arn: str, command: str) -> tuple[int | None, str]:
    runtime = AgentCoreRuntime(arn)
    session = str(uuid.uuid4())
    said, status = "", None
    try:
        with contextlib.suppress(RuntimeFault):  # a command needs a session: a request that the app refuses starts one
            await runtime.invoke(session, b'{"_rollout": {}}')
        async for event in runtime.command(session, command, timeout=60):
            said += (event.stdout or "") + (event.stderr or "")
            status = event.exit_code if event.exit_code is not None else status
    finally:
        with contextlib.suppress(RuntimeFault):
            await runtime.stop(session)
        await runtime.aclose()
    return status, said


def role_arn(place: Place, name: str) -> str:
    """The role that deploy makes."""
    return f"arn:{place.partition}:iam::{place.account}:role/agentcore-rl-{name}"
