"""The settings of a deployment: explicit, else the environment, else `.env`, else the last deploy's, else a default."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..common.env_file import read_env
from ..errors import ConfigError
from .aws.state import State

VARIABLES = {
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "account": ("AWS_ACCOUNT",),
    "repository": ("ECR_REPO_NAME",),
}
"""Settings that the environment and `.env` may hold."""
_REPOSITORY = re.compile(r"(?=.{2,256}$)[a-z0-9]+((\.|_|__|-+|/)[a-z0-9]+)*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, kw_only=True)
class DeploySettings:
    """One agent's deployment."""

    folder: Path
    name: str
    """The runtime's name."""
    region: str | None = None
    account: str | None = None
    bucket: str | None = None
    prefix: str = ""
    queue: str | None = None
    repository: str = ""
    role: str | None = None
    """The ARN of a role of the user's own, used as it is."""
    policy: str | None = None
    """A file with further statements for the role."""
    environment: Mapping[str, str] = field(default_factory=dict)
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    idle_seconds: int | None = None
    lifetime_seconds: int | None = None

    def to_keep(self) -> dict[str, Any]:
        """The settings that the next deploy reuses."""
        names = [spec.name for spec in fields(self) if spec.name not in ("folder", "region", "account")]
        return {name: value for name in names if (value := getattr(self, name))}

    def policy_statements(self) -> list[dict[str, Any]]:
        if self.policy is None:
            return []
        try:
            statements = json.loads(Path(self.policy).read_text(encoding="utf-8"))["Statement"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = 'write an IAM policy: JSON with "Statement": […]'
            raise ConfigError(f"--policy {self.policy}: {error}", hint=hint) from None
        return statements if isinstance(statements, list) else [statements]


def read_settings(folder: Path, state: State, given: Mapping[str, Any]) -> DeploySettings:
    """Settings for the agent in `folder`; `given` are those of the command line."""
    if not (folder / "Dockerfile").is_file():
        hint = "name an agent's folder; `agentcore-rl init` writes one with a Dockerfile"
        raise ConfigError(f"{folder} has no Dockerfile", hint=hint)
    values = {name: value for name, value in given.items() if value not in (None, (), {})}
    env = read_env(folder)
    for name, variables in VARIABLES.items():
        found = [os.environ.get(variable) for variable in variables] + [env.get(variables[0])]
        if name not in values and any(found):
            values[name] = next(filter(None, found))
    if "environment" in values:  # a new variable joins those of earlier deploys; an empty one drops out
        merged = {**state.settings.get("environment", {}), **values["environment"]}
        values["environment"] = {name: value for name, value in merged.items() if value}
    for name, value in {**state.settings, "region": state.region}.items():
        if value:
            values.setdefault(name, tuple(value) if isinstance(value, list) else value)
    values.setdefault("name", re.sub(r"\W+", "_", folder.resolve().name).strip("_")[:48])
    values.setdefault("prefix", "" if values.get("bucket") else values["name"])  # s3_bucket=BUCKET then works as it is
    values.setdefault("repository", values["name"].lower().replace("_", "-").strip("-"))
    settings = DeploySettings(folder=folder, **values)
    _check(settings)
    return settings


def _check(settings: DeploySettings) -> None:
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]{0,47}", settings.name):
        hint = "use a letter, then up to 47 letters, digits or underscores"
        raise ConfigError(f"{settings.name!r} is not a valid runtime name", hint=hint)
    if not _REPOSITORY.fullmatch(settings.repository):
        hint = "use lower-case letters and digits, with . _ - / between them (ECR_REPO_NAME, --repository)"
        raise ConfigError(f"{settings.repository!r} is not a valid ECR repository name", hint=hint)
    if settings.bucket is not None and not _BUCKET.fullmatch(settings.bucket):
        raise ConfigError(f"{settings.bucket!r} is not a valid bucket name", hint="use 3 to 63 of a-z, 0-9, . and -")
    if settings.account is not None and not re.fullmatch(r"[0-9]{12}", settings.account):
        raise ConfigError(f"AWS_ACCOUNT {settings.account!r} is not an account id", hint="it has 12 digits")
