"""Where things are in SageMaker, for jobs and for training sessions: models, roles, model package groups, output in S3.

The checks of names contact nothing; the functions that take an `Aws` do.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from typing import Any

from ...common.checked_settings import option
from ...deploy.aws.calls import Aws
from ...errors import AwsRefused, ConfigError
from ..settings import TrainSettings

HUB = "SageMakerPublicHub"
_MODEL = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}")
_MODEL_ARN = re.compile(r"arn:[a-z0-9-.]+:sagemaker:[a-z0-9-]+:([0-9]{12}|aws):hub-content/\S+/Model/\S+")
_ROLE = re.compile(r"arn:aws(-[^:]+)?:iam::[0-9]{12}:role/\S+")
_EXISTS = ("ResourceInUse", "ResourceInUseException")
_MISSING = ("ResourceNotFound", "ResourceNotFoundException", "ValidationException")


@dataclass(frozen=True, kw_only=True, repr=False)
class SagemakerPlace(TrainSettings):
    """What jobs and training sessions both need to know."""

    model: str = option("", "the base model: its name or its ARN in SageMaker's hub", alias="model_dir")
    role_arn: str = option("", "the role that SageMaker assumes")
    s3_output: str | None = option(
        None, "where SageMaker's files go: s3://bucket/prefix (default: under store, if that is a bucket)"
    )
    model_package_group: str = option("agentcore-rl", "the model package group of the result, created if missing")
    accept_eula: bool = option(False, "accept the license agreement of a gated base model")


def check_model_name(model: str) -> None:
    """Refuse what can't be a model of SageMaker's hub."""
    if not (_MODEL.fullmatch(model) or _MODEL_ARN.fullmatch(model)) or model == "tiny":
        hint = "give its name in SageMaker's hub, such as openai-reasoning-gpt-oss-20b, or its ARN"
        raise ConfigError(f"SageMaker has no model named {model!r}", hint=hint)


def check_role(role: str) -> None:
    if not _ROLE.fullmatch(role):
        hint = "give role_arn: arn:aws:iam::<account>:role/<name>, which SageMaker may assume"
        raise ConfigError(f"{role!r} is not the ARN of a role" if role else "role_arn is missing", hint=hint)


def output_uri(settings: SagemakerPlace) -> str:
    """The place in S3 that SageMaker writes to, without a slash at its end."""
    uri = settings.s3_output
    if uri is None and settings.store and not settings.store.startswith((".", "/", "file:")):
        store = settings.store if settings.store.startswith("s3://") else f"s3://{settings.store}"
        uri = f"{store.rstrip('/')}/sagemaker"
    if uri is None or not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?", uri):
        hint = "give s3_output: s3://bucket/prefix"
        raise ConfigError(f"{uri!r} is not a place in S3" if uri else "s3_output is missing", hint=hint)
    return uri.rstrip("/")


def split_uri(uri: str) -> tuple[str, str]:
    """The bucket and the key.

    >>> split_uri("s3://bucket/a/b"), split_uri("s3://bucket")
    (('bucket', 'a/b'), ('bucket', ''))
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def new_name(text: str) -> str:
    """A name that is free in the account: the run's name, the time, and four hexadecimal digits.

    >>> re.fullmatch(r"math-run-[0-9]{6}-[0-9]{6}-[0-9a-f]{4}", new_name("math_run")) is not None
    True
    """
    plain = re.sub(r"[^a-zA-Z0-9]+", "-", text).strip("-")[:40].strip("-") or "run"
    return f"{plain}-{time.strftime('%y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def find_model(aws: Aws, model: str) -> str:
    """The ARN of a model in SageMaker's public hub."""
    if model.startswith("arn:"):
        return model
    known = {"HubName": HUB, "HubContentType": "Model", "HubContentName": model}
    found = aws.read("sagemaker", "describe_hub_content", missing=_MISSING, **known)
    if not found:
        hint = f"aws sagemaker list-hub-contents --hub-name {HUB} --hub-content-type Model lists them"
        raise ConfigError(f"SageMaker's hub has no model named {model} in {aws.region}", hint=hint)
    return str(found["HubContentArn"])


def make_group(aws: Aws, name: str) -> str:
    """The ARN of a model package group, which is created if it doesn't exist."""
    if name.startswith("arn:"):
        return name
    known = aws.read("sagemaker", "describe_model_package_group", missing=_MISSING, ModelPackageGroupName=name)
    if known:
        return str(known["ModelPackageGroupArn"])
    try:
        made = aws.change("sagemaker", "create_model_package_group", ModelPackageGroupName=name)
    except AwsRefused as error:
        if error.code not in _EXISTS:
            raise
        made = aws.read("sagemaker", "describe_model_package_group", ModelPackageGroupName=name)
    return str(made["ModelPackageGroupArn"])


def delete_package(aws: Aws, package: str, output: str) -> None:
    """Delete a model package and, if they are under `output`, its files."""
    known = aws.read("sagemaker", "describe_model_package", missing=_MISSING, ModelPackageName=package)
    if not known:
        return
    aws.change("sagemaker", "delete_model_package", ModelPackageName=package)
    containers: list[dict[str, Any]] = (known.get("InferenceSpecification") or {}).get("Containers") or []
    for container in containers:
        uri = ((container.get("ModelDataSource") or {}).get("S3DataSource") or {}).get("S3Uri") or ""
        if uri.startswith(f"{output}/"):
            _delete_objects(aws, *split_uri(uri))


def _delete_objects(aws: Aws, bucket: str, key: str) -> None:
    """Delete the objects under a key. The prefix ends in a slash: deleting `run-1` must not delete `run-10`."""
    more: dict[str, Any] = {}
    while True:
        page = aws.read("s3", "list_objects_v2", Bucket=bucket, Prefix=key.rstrip("/") + "/", **more)
        keys = [{"Key": one["Key"]} for one in page.get("Contents") or []]
        if keys:
            aws.change("s3", "delete_objects", Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
        if not page.get("NextContinuationToken"):
            return
        more = {"ContinuationToken": page["NextContinuationToken"]}
