"""What a local runtime is started with. Plain values, checked; a supervisor reads them as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....errors import ConfigError
from ...base import TOKEN_VARIABLE
from ..agent_source import AgentSource, SessionPolicy
from ..sandbox.namespaces import PROTECTIONS
from ..sandbox.probe import default_max_sessions

_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,128}")
_MOST_WORKERS, _CORES_PER_WORKER = 16, 4
Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class RuntimeSettings:
    """Make one with `make`, which has the defaults."""

    agents: list[AgentSource]
    host: str
    port: int
    max_sessions: int
    spares: int
    protections: list[str]
    """Those that are wanted."""
    buckets: str | None
    stores: list[str]
    """The folders that callers over HTTP may name as their store."""
    token: str
    """boto3 sends it as its access key id."""
    allow_hosts: list[str]
    workers: int
    front: str | None = None
    """The address of the front, for a worker."""

    @classmethod
    def make(
        cls,
        agents: Folder | AgentSource | Sequence[AgentSource],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        max_sessions: int | None = None,
        spares: int = 4,
        protections: Sequence[str] | None = None,
        buckets: Folder | None = None,
        stores: Sequence[Folder] | None = None,
        token: str | None = None,
        allow_hosts: Sequence[str] = (),
        workers: int | None = None,
    ) -> RuntimeSettings:
        """Check what `LocalRuntime` was given."""
        if isinstance(agents, (str, os.PathLike)):
            agents = AgentSource.parse(agents)
        sources = [agents] if isinstance(agents, AgentSource) else list(agents)
        if workers is not None and workers < 1:
            raise ConfigError(f"workers must be at least 1, not {workers}")
        names = [source.name for source in sources]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"agents need distinct names, not {names}", hint="name them in a config file")
        for name in protections or ():
            if name not in PROTECTIONS:
                raise ConfigError(f"unknown protection {name!r}", hint=f"known: {', '.join(PROTECTIONS)}")
        return cls(
            agents=sources,
            host=host,
            port=port,
            max_sessions=max_sessions or default_max_sessions(),
            spares=spares,
            protections=list(PROTECTIONS if protections is None else protections),
            buckets=None if buckets is None else os.path.abspath(buckets),
            stores=_store_folders(stores),
            token=_choose_token(token),
            allow_hosts=list(allow_hosts),
            workers=_default_workers() if workers is None else workers,
        )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RuntimeSettings:
        values = json.loads(text)
        agents = [
            AgentSource(**source | {"policy": SessionPolicy.load(source["policy"])}) for source in values["agents"]
        ]
        return cls(**values | {"agents": agents})


def _default_workers() -> int:
    """One keeps about four cores busy with sessions."""
    return max(1, min(_MOST_WORKERS, (os.cpu_count() or 1) // _CORES_PER_WORKER))


def _choose_token(given: str | None) -> str:
    """The given token, or the environment's, or a new one."""
    token = given or os.environ.get(TOKEN_VARIABLE) or secrets.token_hex(20)
    if not _TOKEN.fullmatch(token):
        raise ConfigError(
            "the runtime's token must be 16 to 128 letters, digits, '-' and '_'",
            hint=f"unset {TOKEN_VARIABLE}, and the runtime makes one",
        )
    return token


def _store_folders(given: Iterable[Folder] | None) -> list[str]:
    """The folders that callers may name: by default the current one, unless that is the root."""
    if given is not None:
        return [os.path.abspath(folder) for folder in given]
    here = Path.cwd()
    return [] if here == Path(here.anchor) else [str(here)]
