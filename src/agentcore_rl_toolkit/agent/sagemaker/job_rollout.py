"""`JobRollout`: a rollout that a SageMaker job requests, and where its model is.

SageMaker invokes the agent with `{instance | prompt, metadata, inferenceParams, model_name, model_endpoint}`. AWS's
SDK reads each name in two spellings, and so does this module. Model calls are OpenAI chat completions at
`{endpoint}/v1` with two headers, which name the job and the trajectory, and a bearer token.

The sender of the request chooses the endpoint, and so where model calls go. A token signed with the container's
credentials therefore goes to SageMaker's hosts only. Other hosts get none, AWS's included: any AWS customer can run an
API there.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from ...common.env_file import aws_region
from ...errors import ConfigError
from ...rows import row_of_prompt
from ...types import RolloutId

JOB_HEADER = "X-Amzn-SageMaker-Job-Arn"
TRAJECTORY_HEADER = "X-Amzn-SageMaker-Trajectory-Id"

_LONGEST = 256
_HOST = re.compile(
    r"([a-z0-9-]+\.)*sagemaker(-fips)?\.[a-z]+(-[a-z]+)+-[0-9]+\."
    r"(amazonaws\.(com(\.cn)?|eu)|api\.(aws|amazonwebservices\.(com\.cn|eu)))"
)
_REGION = re.compile(r"arn:[^:]*:sagemaker:([a-z0-9-]+):")
_REGION_NAME = re.compile(r"[a-z0-9-]{1,64}")
_TOKEN_SECONDS = 43_200
_OWN = (
    *("metadata", "_rollout", "inference_params", "inferenceParams"),
    *("model_name", "modelName", "model_endpoint", "modelEndpoint"),
)
"""Fields of a request that no row replaces."""
_SAMPLING = (("temperature", "temperature"), ("max_tokens", "maxTokens"), ("top_p", "topP"))


@dataclass(frozen=True)
class JobRollout:
    """One trajectory of a job.

    >>> metadata = {"jobArn": "arn:aws:sagemaker:us-east-1:123456789012:job/AgentRFT/math", "rolloutId": "t-1"}
    >>> job = JobRollout.read({"prompt": "2+2", "metadata": metadata, "inferenceParams": {"maxTokens": 9}})
    >>> job.base_url, job.sampling_params
    ('https://job-runtime.sagemaker.us-east-1.api.aws/v1', {'max_tokens': 9})
    """

    job_arn: str
    trajectory_id: str
    endpoint: str
    """The Job Runtime's URL."""
    region: str
    base_url: str
    """Where model calls go: the endpoint's, unless the request names another."""
    model_id: str | None = None
    sampling_params: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, payload: Any) -> JobRollout | None:
        """The rollout that a request asks for; None if no job sent the request."""
        metadata = payload.get("metadata") if isinstance(payload, Mapping) else None
        if not isinstance(metadata, Mapping) or payload.get("_rollout"):
            return None
        job_arn = _first(metadata, "job_arn", "jobArn")
        trajectory_id = _first(metadata, "trajectory_id", "trajectoryId", "rolloutId")
        if job_arn is None or trajectory_id is None:
            return None
        region = _region(metadata, job_arn)
        default = os.environ.get("RFT_RUNTIME_ENDPOINT") or f"https://job-runtime.sagemaker.{region}.api.aws"
        endpoint = _url(_first(metadata, "endpoint") or default, "metadata.endpoint")
        named = _first(payload, "model_endpoint", "modelEndpoint")
        return cls(
            job_arn=_short(job_arn, "metadata.job_arn"),
            trajectory_id=_short(trajectory_id, "metadata.trajectory_id"),
            endpoint=endpoint,
            region=region,
            base_url=f"{endpoint}/v1" if named is None else _url(named, "model_endpoint"),
            model_id=_first(payload, "model_name", "modelName"),
            sampling_params=_sampling(payload.get("inferenceParams") or payload.get("inference_params")),
        )

    @property
    def headers(self) -> dict[str, str]:
        return {JOB_HEADER: self.job_arn, TRAJECTORY_HEADER: self.trajectory_id}

    def api_key(self) -> str:
        """The key of model calls: a bearer token for SageMaker, a placeholder for any other endpoint."""
        return bearer_token(self.region) if is_sagemaker(self.base_url) else "EMPTY"

    def id(self, session_id: str | None) -> RolloutId:
        """The ids under which the result is stored: the experiment is the job, the row is the trajectory."""
        name = self.job_arn.rsplit("/", 1)[-1] or "job"
        job, trajectory = (quote(text, safe=" :=+@,")[:200] for text in (name, self.trajectory_id))
        return RolloutId(f"sagemaker/{job}", trajectory, quote(session_id or trajectory, safe=" :=+@,")[:200])


def with_row(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A job's payload with the fields of its row beside its own, where every rollout has them, and a `_rollout`.

    The `_rollout` is empty; it tells the function that this is not a production request. The row is the `instance`, or
    was made one text with its prompt (`rows.row_as_prompt`).

    >>> with_row({"instance": {"prompt": "2+2", "answer": "4"}, "model_name": "m"})["answer"]
    '4'
    """
    instance = payload.get("instance")
    row = instance if isinstance(instance, Mapping) else row_of_prompt(payload.get("prompt"))
    if row is None:
        return {**payload, "_rollout": {}}
    fields = {name: value for name, value in row.items() if name not in _OWN}
    return {**payload, **fields, "instance": dict(row), "_rollout": {}}


def is_sagemaker(url: str) -> bool:
    """Whether a URL is one of SageMaker's, over TLS.

    >>> is_sagemaker("https://job-runtime.sagemaker.us-east-1.api.aws/v1")
    True
    >>> is_sagemaker("https://mine.execute-api.us-east-1.amazonaws.com/v1")
    False
    """
    parts = urlsplit(url)
    return parts.scheme == "https" and _HOST.fullmatch(parts.hostname or "") is not None


def endpoint_key(url: str | None) -> str | None:
    """A token for an endpoint of SageMaker's, signed with this process's credentials; None for any other host."""
    if url is None or not is_sagemaker(url):
        return None
    host = urlsplit(url).hostname or ""
    return bearer_token(host.rpartition("sagemaker")[2].split(".")[1])


def bearer_token(region: str) -> str:
    """A short-term token for SageMaker's APIs, as `sagemaker.core.token_generator` makes it."""
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.session import Session

    credentials = Session().get_credentials()
    if credentials is None:
        raise ConfigError(
            "a model on SageMaker needs AWS credentials, and this process has none", hint="give the runtime a role"
        )
    request = AWSRequest("POST", "https://sagemaker.amazonaws.com/", {"host": "sagemaker.amazonaws.com"})
    request.params = {"Action": "CallWithBearerToken"}
    frozen = credentials.get_frozen_credentials()  # one version of refreshable credentials
    SigV4QueryAuth(frozen, "sagemaker", region, expires=_TOKEN_SECONDS).add_auth(request)
    signed = request.url.removeprefix("https://") + "&Version=1"
    return "sagemaker-api-key-" + base64.b64encode(signed.encode()).decode()


def _first(fields: Mapping[str, Any], *names: str) -> str | None:
    """The first of these fields that is a text with something in it."""
    return next((value for name in names if isinstance(value := fields.get(name), str) and value), None)


def _region(metadata: Mapping[str, Any], job_arn: str) -> str:
    """The region that the request names, the job's, or this process's."""
    found = _REGION.match(job_arn)
    region = _first(metadata, "region") or (found and found[1])
    region = region or aws_region()
    if not region:
        raise ConfigError("the job's region is unknown", hint="send metadata.region, or set AWS_REGION")
    if not _REGION_NAME.fullmatch(region):
        raise ConfigError(f"metadata.region is not a region: {region[:40]!r}")
    return region


def _short(value: str, name: str) -> str:
    if len(value) > _LONGEST or not value.isascii() or not value.isprintable():  # it becomes a header
        raise ConfigError(f"{name} must be at most {_LONGEST} printable ASCII characters")
    return value


def _url(value: str, name: str) -> str:
    try:
        parts = urlsplit(value)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    # A user part or a backslash: clients disagree on which host such a URL names.
    if not is_url or not (value.isascii() and value.isprintable()) or any(sign in value for sign in " @\\"):
        raise ConfigError(
            f"{name} is not a URL", hint="send a URL such as https://job-runtime.sagemaker.us-east-1.api.aws"
        )
    return value.rstrip("/")


def _sampling(params: Any) -> dict[str, Any]:
    """The sampling settings under OpenAI's names; settings that are null are left out."""
    if not isinstance(params, Mapping):
        return {}
    found = {name: params.get(name) if params.get(name) is not None else params.get(camel) for name, camel in _SAMPLING}
    return {name: value for name, value in found.items() if value is not None}
