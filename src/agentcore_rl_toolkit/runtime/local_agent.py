"""An agent with the variables, addresses and memory that its sessions on this machine get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.env_file import read_env
from ..errors import ConfigError

if TYPE_CHECKING:
    from .local import AgentSource

_HOSTS_OWN = "AWS_"


def local_agent(
    agent: str,
    *,
    env: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    memory_mb: int | None = None,
) -> str | AgentSource:
    """The agent at a path, with what its sessions get; an ARN as it is, which can't be given any of it.

    The variables of `.env` come first, and those of `env` override them. A session gets an `AWS_…` variable only from
    `env`: in `.env` they say where to deploy, and credentials for AWS should not reach an agent by accident.
    """
    if agent.startswith("arn:"):
        given = {"--env": env, "--allow": allow, "--memory-mb": memory_mb}
        for flag in (flag for flag, value in given.items() if value):
            hint = "give it to `agentcore-rl deploy` or `agentcore-rl runtime serve`, or name the agent by its path"
            raise ConfigError(f"{flag} sets up sandboxes on this machine, and {agent} runs elsewhere", hint=hint)
        return agent
    return agent_source(agent, env=env, allow=allow, memory_mb=memory_mb)


def agent_source(
    path: str,
    *,
    env: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    memory_mb: int | None = None,
) -> AgentSource:
    """The same, for what is known to be a path."""
    from .local import AgentSource, SessionPolicy

    limits: dict[str, Any] = {} if memory_mb is None else {"memory_mb": memory_mb}
    source = AgentSource.parse(path, policy=SessionPolicy(allow=tuple(allow), **limits))
    source.env.update(session_env(source.folder, env))
    return source


def session_env(folder: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that sessions of the agent in `folder` get: those of `.env`, overridden by `env`."""
    for name, value in (env or {}).items():
        if not isinstance(value, str):
            raise ConfigError(f"env {name} must be text, not {value!r}", hint="put it in quotes")
    kept = {name: value for name, value in read_env(Path(folder)).items() if not name.startswith(_HOSTS_OWN)}
    return kept | dict(env or {})
