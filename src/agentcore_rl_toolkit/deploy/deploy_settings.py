"""What a deployment is told: explicit, else the environment, else `.env`, else as last time, else a default."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common.env_file import read_env
from ..errors import ConfigError
from .aws.state import State

VARIABLES = {"region": "AWS_REGION", "account": "AWS_ACCOUNT", "repository": "ECR_REPO_NAME"}
"""Those of `.env`; the same as in the environment."""
_KEPT = ("name", "bucket", "prefix", "queue", "repository", "role", "environment", "subnets", "security_groups")
_KEPT_TOO = ("idle_seconds", "lifetime_seconds", "policy")
_REPOSITORY = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, kw_only=True)
class DeploySettings:
    """One agent's deployment."""

    folder: Path
    name: str
    """The runtime's."""
    region: str | None = None
    account: str | None = None
    bucket: str | None = None
    prefix: str = ""
    queue: str | None = None
    repository: str = ""
    role: str | None = None
    """An ARN: a role of the user's own, which is used as it is."""
    policy: str | None = None
    """A file with further statements for the role."""
    environment: Mapping[str, str] = field(default_factory=dict)
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    idle_seconds: int | None = None
    lifetime_seconds: int | None = None

    def kept(self) -> dict[str, Any]:
        """What the next deploy need not be told again."""
        return {name: value for name in (*_KEPT, *_KEPT_TOO) if (value := getattr(self, name))}

    def statements(self) -> list[dict[str, Any]]:
        """The further statements of `policy`."""
        if self.policy is None:
            return []
        path = Path(self.policy)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            statements = found["Statement"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = 'expected JSON with "Statement": […], as IAM has it'
            raise ConfigError(f"--policy {self.policy}: {error}", hint=hint) from None
        return statements if isinstance(statements, list) else [statements]


def read_settings(folder: Path, state: State, given: Mapping[str, Any]) -> DeploySettings:
    """Settings for the agent in `folder`; `given` are those of the command line."""
    if not (folder / "Dockerfile").is_file():
        hint = "name an agent's folder; `agentcore-rl init` writes one with a Dockerfile"
        raise ConfigError(f"there is no Dockerfile in {folder}", hint=hint)
    values = {name: value for name, value in given.items() if value not in (None, (), {})}
    env = read_env(folder)
    for name, variable in VARIABLES.items():
        found = os.environ.get(variable) or (os.environ.get("AWS_DEFAULT_REGION") if name == "region" else None)
        if name not in values and (found := found or env.get(variable)):
            values[name] = found
    if "environment" in values:  # one more variable leaves the others; an empty one goes
        both = {**state.settings.get("environment", {}), **values["environment"]}
        values["environment"] = {name: value for name, value in both.items() if value}
    for name, value in {**state.settings, "region": state.region}.items():
        if value:
            values.setdefault(name, tuple(value) if isinstance(value, list) else value)
    default = re.sub(r"\W+", "_", folder.resolve().name).strip("_")[:48]
    values.setdefault("name", default)
    values.setdefault("prefix", values["name"])
    values.setdefault("repository", values["name"].lower().replace("_", "-").strip("-"))
    settings = DeploySettings(folder=folder, **values)
    _check(settings)
    return settings


def _check(settings: DeploySettings) -> None:
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]{0,47}", settings.name):
        hint = "a letter, then up to 47 letters, digits or underscores"
        raise ConfigError(f"{settings.name!r} can't be the name of a runtime", hint=hint)
    if not _REPOSITORY.fullmatch(settings.repository) or not 2 <= len(settings.repository) <= 256:
        hint = "lower-case letters and digits, with . _ - / between them (ECR_REPO_NAME, --repository)"
        raise ConfigError(f"{settings.repository!r} can't be the name of an ECR repository", hint=hint)
    if settings.bucket is not None and not _BUCKET.fullmatch(settings.bucket):
        raise ConfigError(f"{settings.bucket!r} can't be the name of a bucket", hint="3 to 63 of a-z, 0-9, . and -")
    if settings.account is not None and not re.fullmatch(r"[0-9]{12}", settings.account):
        raise ConfigError(f"AWS_ACCOUNT {settings.account!r} is not an account", hint="it has 12 digits")
