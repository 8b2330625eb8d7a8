"""An agent on this machine: where its code is, and what its sessions may use and reach. Plain values.

`sandbox/` enforces the limits. Importing this module needs no extra.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...common.env_file import read_env
from ...errors import ConfigError
from ..base import PLACEHOLDER_AWS
from ..hosting.agent_code import find_agent

ACCOUNT = "000000000000"
ARN_PREFIX = f"arn:aws:bedrock-agentcore:local:{ACCOUNT}:runtime/"
ON_AWS = {
    "--env": "set it on the runtime: agentcore-rl deploy --env NAME=VALUE",
    "--allow": "its network says what it reaches: agentcore-rl deploy --subnet ID --security-group ID",
    "--memory-mb": "leave it out: AWS decides the memory of its sessions",
}
"""What to do instead of flags that set up sandboxes, for a runtime on AWS."""
_LONGEST_SECONDS, _SHORTEST_SECONDS = 1_209_600, 1
_KEPT_ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_CERTIFICATES = "/etc/ssl/certs"
"""Where many systems keep them, each in a file that is named by its hash, and all of them in `ca-certificates.crt`."""
_HASHED_NAME = re.compile(r"[0-9a-f]{8}\.\d")
# Hundreds of sessions share the cores: thread pools in each would slow all of them down, and can't be forked.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, kw_only=True)
class SessionPolicy:
    """Limits of one session, and the lifecycle of all of an agent's sessions."""

    memory_mb: int = 2048
    """Memory of all processes of a session together, including files in its /tmp and working directory."""
    cpus: float = 1.0
    """CPU time per second of wall-clock time."""
    processes: int = 512
    """Processes and threads."""
    disk_mb: int = 1024
    """Size of the session's writable files (they live in memory)."""
    allow: tuple[str, ...] = ()
    """Further addresses the session may reach, as `host:port`; it may always reach its invoke's own endpoints."""
    idle_timeout: float = 900
    """Seconds without a request, and without work in the background, after which a session ends."""
    max_lifetime: float = 28_800
    """Seconds after which a session ends whatever it does."""
    start_timeout: float = 120
    """Seconds an agent has to import."""
    stop_grace: float = 3
    """Seconds between SIGTERM and SIGKILL."""

    def __post_init__(self) -> None:
        for name in ("memory_mb", "cpus", "processes", "disk_mb", "start_timeout", "stop_grace"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be greater than 0, not {getattr(self, name)!r}")
        for name in ("idle_timeout", "max_lifetime"):
            if not _SHORTEST_SECONDS <= getattr(self, name) <= _LONGEST_SECONDS:
                raise ConfigError(f"{name} must be {_SHORTEST_SECONDS} to {_LONGEST_SECONDS} seconds")
        for address in self.allow:
            parse_address(address)

    @classmethod
    def load(cls, settings: dict[str, Any]) -> SessionPolicy:
        """From a config file's table; unknown names are refused."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in settings:
            if name not in known:
                raise ConfigError(f"unknown setting {name!r}", hint=f"known: {', '.join(sorted(known))}")
        allow = settings.get("allow", ())
        return cls(**settings | {"allow": tuple(allow.split(",") if isinstance(allow, str) else allow)})


@dataclass(frozen=True)
class AgentSource:
    """Where an agent's code is, and what its sessions get."""

    name: str
    folder: str
    entry: str
    policy: SessionPolicy = field(default_factory=SessionPolicy)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    tps_limit: float | None = None

    @classmethod
    def parse(cls, target: str | os.PathLike[str], name: str | None = None, **settings: Any) -> AgentSource:
        """From `path/to/rl_app.py` or `module:app`. The name defaults to the folder's or module's, fit for an ARN."""
        return cls(*find_agent(target, name), **settings)

    @property
    def arn(self) -> str:
        """The agent's ARN on this machine."""
        return ARN_PREFIX + self.name

    @property
    def has_credentials(self) -> bool:
        """Whether its sessions have credentials for AWS; if not, the runtime's own S3 is the only one."""
        return "AWS_ACCESS_KEY_ID" in self.env

    def store_variables(self, endpoint_url: str, token: str) -> dict[str, str]:
        """The variables with which the runtime itself reaches its sessions' stores."""
        if self.has_credentials:
            return dict(self.env)
        return self.env | PLACEHOLDER_AWS | {"AWS_ENDPOINT_URL_S3": endpoint_url, "AWS_ACCESS_KEY_ID": token}

    def environment(self) -> dict[str, str]:
        """The variables of a session's process: those of the host that hold no secrets, and the agent's own."""
        kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        kept |= _ONE_THREAD | {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"} | self.env
        return _with_certificate_folder(kept)


def _with_certificate_folder(env: dict[str, str]) -> dict[str, str]:
    """The same, with this machine's certificate authorities as a folder, from which OpenSSL reads what it needs.

    HTTP clients read the whole bundle each time they are made, for plain HTTP too: 12 ms of CPU for each model call of
    some agents, of 70 ms that their rollout takes in all. A bundle or folder that the user chose stays.
    """
    system = {"SSL_CERT_FILE": f"{_CERTIFICATES}/ca-certificates.crt", "SSL_CERT_DIR": _CERTIFICATES}
    chosen = any(env.get(name, value) != value for name, value in system.items())
    if chosen or not any(_HASHED_NAME.fullmatch(name) for name in _names_in(_CERTIFICATES)):
        return env
    return {name: value for name, value in env.items() if name not in system} | {"SSL_CERT_DIR": _CERTIFICATES}


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def resolve_agent(
    agent: str,
    *,
    env: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    memory_mb: int | None = None,
) -> str | AgentSource:
    """The agent at a path, with what its sessions get; an ARN as it is, which takes none of these options."""
    if not agent.startswith("arn:"):
        return source_at(agent, env=env, allow=allow, memory_mb=memory_mb)
    for flag, value in {"--env": env, "--allow": allow, "--memory-mb": memory_mb}.items():
        if value:
            hint = f"give {flag} to agentcore-rl runtime serve" if agent.startswith(ARN_PREFIX) else ON_AWS[flag]
            raise ConfigError(f"{flag} sets up sandboxes on this machine, and {agent} runs elsewhere", hint=hint)
    return agent


def source_at(
    path: str,
    *,
    env: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    memory_mb: int | None = None,
) -> AgentSource:
    """The agent at a path, with the variables, addresses and memory that its sessions get."""
    limits: dict[str, Any] = {} if memory_mb is None else {"memory_mb": memory_mb}
    source = AgentSource.parse(path, policy=SessionPolicy(allow=tuple(allow), **limits))
    source.env.update(session_env(source.folder, env))
    return source


def session_env(folder: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables for sessions of the agent in `folder`: those of `.env`, overridden by `env`.

    A session gets an `AWS_…` variable only from `env`: in `.env` they say where to deploy, and credentials for AWS
    should not reach an agent by accident.
    """
    for name, value in (env or {}).items():
        if not isinstance(value, str):
            raise ConfigError(f"env {name} must be text, not {value!r}", hint="put it in quotes")
    kept = {name: value for name, value in read_env(Path(folder)).items() if not name.startswith("AWS_")}
    return kept | dict(env or {})


def parse_address(address: str) -> tuple[str, int]:
    """`host:port` or a URL, as a pair.

    >>> parse_address("https://bucket.s3.amazonaws.com/x")
    ('bucket.s3.amazonaws.com', 443)
    """
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        port = None
    if not parts.hostname or not port:
        raise ConfigError(f"{address!r} is not an address", hint="write host:port, or a URL")
    return parts.hostname, port
