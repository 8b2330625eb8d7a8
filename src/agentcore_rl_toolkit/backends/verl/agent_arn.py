"""The agent's ARN: given, or that of a runtime made from a container image. Speaks to AWS for the latter only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from ...runtime.aws_control import RuntimeControl, RuntimeSpec


@dataclass(frozen=True, kw_only=True)
class Image:
    """A runtime to be made or updated: its name and its image in ECR; the role may be known to AWS already."""

    name: str
    uri: str
    role_arn: str | None = None

    def spec(self, known: dict[str, Any] | None = None) -> RuntimeSpec:
        """What the runtime should be: what it was, with this image."""
        known = known or {}
        role = self.role_arn or known.get("roleArn")
        if role is None:
            hint = "give role_arn once, or make the runtime with agentcore-rl deploy"
            raise ConfigError(f"there is no runtime {self.name} yet, and no role to make one with", hint=hint)
        network = (known.get("networkConfiguration") or {}).get("networkModeConfig") or {}
        return RuntimeSpec(
            name=self.name,
            container_uri=self.uri,
            role_arn=role,
            environment=known.get("environmentVariables") or {},
            subnets=tuple(network.get("subnets") or ()),
            security_groups=tuple(network.get("securityGroups") or ()),
        )


def deploy(image: Image, control: RuntimeControl | None = None) -> str:
    """The ARN of the runtime, once it is ready with this image."""
    control = control or RuntimeControl()
    try:
        return control.apply(image.spec(control.find(image.name))).arn
    finally:
        control.close()
