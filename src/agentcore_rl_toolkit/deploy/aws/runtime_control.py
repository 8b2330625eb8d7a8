"""Creates runtimes on AWS from a container image, updates those that differ, and waits until they are ready.

Images, roles and buckets must exist. An update keeps the members that others set on a runtime (an authorizer, mounted
files): the service would reset members that a request leaves out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import AwsRefused, ConfigError, RuntimeFault
from .calls import Aws

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,47}")
_IMAGE = re.compile(r"([0-9]{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com(\.cn)?|public\.ecr\.aws)/\S+")
_ROLE = re.compile(r"arn:aws(-[^:]+)?:iam::([0-9]{12})?:role/.+")
_MOVING = ("CREATING", "UPDATING", "DELETING")
_MISSING = "ResourceNotFoundException"
CONTROL = "bedrock-agentcore-control"
"""boto3's name of the service."""


@dataclass(frozen=True, kw_only=True)
class RuntimeSpec:
    """The wanted runtime.

    >>> RuntimeSpec(name="my-agent", container_uri="x", role_arn="y")
    Traceback (most recent call last):
        ...
    agentcore_rl_toolkit.errors.ConfigError: 'my-agent' can't be the name of a runtime
    hint: a letter, then up to 47 letters, digits or underscores: my_agent
    """

    name: str
    container_uri: str
    role_arn: str
    environment: Mapping[str, str] = field(default_factory=dict)
    description: str | None = None
    subnets: tuple[str, ...] = ()
    """With `security_groups`: the runtime is in a VPC. Without: it reaches the internet."""
    security_groups: tuple[str, ...] = ()
    idle_seconds: int | None = None
    """How long a session may be idle (the service's default: 900)."""
    lifetime_seconds: int | None = None
    """How long a session may live (the service's default: 28800)."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """For a new runtime only; later, they are its owner's."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            fixed = re.sub(r"\W+", "_", self.name).strip("_")[:48]
            hint = f"a letter, then up to 47 letters, digits or underscores: {fixed or 'my_agent'}"
            raise ConfigError(f"{self.name!r} can't be the name of a runtime", hint=hint)
        if not _IMAGE.fullmatch(self.container_uri):
            hint = "expected <account>.dkr.ecr.<region>.amazonaws.com/<repository>:<tag>"
            raise ConfigError(f"{self.container_uri!r} is not an image in ECR", hint=hint)
        if not _ROLE.fullmatch(self.role_arn):
            hint = "expected arn:aws:iam::<account>:role/<name>"
            raise ConfigError(f"{self.role_arn!r} is not the ARN of a role", hint=hint)
        if bool(self.subnets) != bool(self.security_groups):
            raise ConfigError("a VPC needs both subnets and security groups", hint="give both, or none for PUBLIC")

    def request(self) -> dict[str, Any]:
        """The members that Create- and UpdateAgentRuntime share."""
        network: dict[str, Any] = {"networkMode": "PUBLIC"}
        if self.subnets:
            groups = {"securityGroups": list(self.security_groups), "subnets": list(self.subnets)}
            network = {"networkMode": "VPC", "networkModeConfig": groups}
        lifecycle = {"idleRuntimeSessionTimeout": self.idle_seconds, "maxLifetime": self.lifetime_seconds}
        lifecycle = {name: seconds for name, seconds in lifecycle.items() if seconds is not None}
        request: dict[str, Any] = {
            "agentRuntimeArtifact": {"containerConfiguration": {"containerUri": self.container_uri}},
            "roleArn": self.role_arn,
            "networkConfiguration": network,
            "protocolConfiguration": {"serverProtocol": "HTTP"},
            "environmentVariables": dict(self.environment),
        }
        if self.description:
            request["description"] = self.description
        return request | ({"lifecycleConfiguration": lifecycle} if lifecycle else {})


@dataclass(frozen=True)
class AppliedRuntime:
    """A runtime that is ready, and the change that made it so: `created`, `updated` or `unchanged`."""

    arn: str
    id: str
    version: str
    change: str


class RuntimeControl:
    """The runtimes of one account and region."""

    def __init__(self, aws: Aws, *, pause: float = 3.0, timeout: float = 900.0) -> None:
        self._aws, self._pause, self._timeout = aws, pause, timeout

    def find(self, name: str) -> dict[str, Any] | None:
        """The runtime of that name, as GetAgentRuntime describes it."""
        token: dict[str, Any] = {}
        while True:
            page = self._aws.read(CONTROL, "list_agent_runtimes", maxResults=100, **token)
            for item in page["agentRuntimes"]:
                if item["agentRuntimeName"] == name:
                    return self.get(item["agentRuntimeId"])
            if not page.get("nextToken"):
                return None
            token = {"nextToken": page["nextToken"]}

    def get(self, runtime_id: str) -> dict[str, Any] | None:
        """One runtime; None if it doesn't exist."""
        found: dict[str, Any] | None = self._aws.read(
            CONTROL, "get_agent_runtime", missing=(_MISSING,), agentRuntimeId=runtime_id
        )
        return found

    def tags(self, arn: str) -> dict[str, str]:
        return dict(self._aws.read(CONTROL, "list_tags_for_resource", resourceArn=arn).get("tags", {}))

    def plan(self, spec: RuntimeSpec, known: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]] | None:
        """The call, with its parameters, that makes `known` match `spec`; None if it does."""
        wanted = spec.request()
        if known is None:
            tags = {"tags": dict(spec.tags)} if spec.tags else {}
            return "create_agent_runtime", {"agentRuntimeName": spec.name, **wanted, **tags}
        same_environment = wanted["environmentVariables"] == known.get("environmentVariables", {})
        if known["status"] != "UPDATE_FAILED" and same_environment and _same(_without_empty(wanted), known):
            return None
        members = self._aws.client(CONTROL).meta.service_model.operation_model("UpdateAgentRuntime").input_shape.members
        kept = {name: known[name] for name in members if known.get(name)}  # empty members were never set
        return "update_agent_runtime", kept | wanted | {"agentRuntimeId": known["agentRuntimeId"]}

    def apply(
        self, spec: RuntimeSpec, *, role_seconds: float = 0, say: Callable[[str], object] = lambda line: None
    ) -> AppliedRuntime:
        """Create or update the runtime, and wait until it is ready; `role_seconds` is how long a new role may take."""
        known = self._wait_while_changing(self.find(spec.name))
        if known is not None and known["status"] == "CREATE_FAILED":  # it can't be updated
            say(f"removing {known['agentRuntimeId']}, which could not be created")
            self.delete(known["agentRuntimeId"])
            known = None
        call = self.plan(spec, known)
        if call is None and known is not None:
            return AppliedRuntime(
                known["agentRuntimeArn"], known["agentRuntimeId"], known["agentRuntimeVersion"], "unchanged"
            )
        assert call is not None
        change = "updated" if known else "created"
        say(f"{'updating' if known else 'creating'} the runtime {spec.name}")
        answer = self._change(*call, role_seconds)
        ready = self.wait_ready(answer["agentRuntimeId"])
        return AppliedRuntime(ready["agentRuntimeArn"], ready["agentRuntimeId"], ready["agentRuntimeVersion"], change)

    def wait_ready(self, runtime_id: str) -> dict[str, Any]:
        """Wait for READY; a fault has the reason of a failure."""
        known = self._wait_while_changing(self.get(runtime_id))
        if known is None:
            raise RuntimeFault(f"the runtime {runtime_id} does not exist", code="ResourceNotFoundException")
        if known["status"] != "READY":
            reason = known.get("failureReason") or "no reason given"
            hint = "check that the image exists, is built for linux/arm64, and that the role may pull it"
            raise RuntimeFault(f"the runtime {runtime_id} is {known['status']}: {reason}", hint=hint)
        return known

    def delete(self, runtime_id: str) -> bool:
        """Delete a runtime and wait until it is; False if it did not exist."""
        try:
            self._aws.change(CONTROL, "delete_agent_runtime", agentRuntimeId=runtime_id)
        except AwsRefused as refused:
            if refused.code == _MISSING:
                return False
            raise
        left = self._wait_while_changing(self.get(runtime_id))
        if left is not None:
            reason = left.get("failureReason") or "no reason given"
            raise RuntimeFault(f"the runtime {runtime_id} is {left['status']}: {reason}", hint="delete it again")
        return True

    def _wait_while_changing(self, known: dict[str, Any] | None) -> dict[str, Any] | None:
        """The runtime once it has stopped changing."""
        deadline = time.monotonic() + self._timeout
        while known is not None and known["status"] in _MOVING:
            if time.monotonic() > deadline:
                state = f"{known['agentRuntimeId']} is still {known['status']} after {self._timeout:g} s"
                raise RuntimeFault(
                    f"the runtime {state}", hint="wait longer with --aws-timeout, or see the AWS console"
                )
            time.sleep(self._pause)
            known = self.get(known["agentRuntimeId"])
        return known

    def _change(self, operation: str, params: dict[str, Any], role_seconds: float) -> dict[str, Any]:
        """Create or update the runtime. The service refuses a role made seconds ago: retry for `role_seconds`."""
        deadline = time.monotonic() + min(role_seconds, self._timeout)
        while True:
            try:
                return self._aws.change(CONTROL, operation, **params)
            except AwsRefused as refused:
                if refused.code != "ValidationException" or time.monotonic() >= deadline:
                    raise
            time.sleep(self._pause)


def _same(wanted: Any, known: Any) -> bool:
    """Whether `known` has all wanted members; the service adds members of its own."""
    if isinstance(wanted, dict) and isinstance(known, Mapping):
        return all(_same(value, known.get(name)) for name, value in wanted.items())
    return bool(wanted == known)


def _without_empty(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value != {}}
