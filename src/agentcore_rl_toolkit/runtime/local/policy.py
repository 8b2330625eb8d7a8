"""What a session may use and reach: plain values. What enforces them is in `sandbox.py` and `cgroup.py`."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ...errors import ConfigError

_SESSION_MEGABYTES = 32
_LONGEST_SECONDS, _SHORTEST_SECONDS = 1_209_600, 1


@dataclass(frozen=True, kw_only=True)
class SessionPolicy:
    """Limits of one session, and the lifecycle of all of an agent's sessions."""

    memory_mb: int = 2048
    """Memory of all processes of a session together, files in its /tmp and working directory included."""
    cpus: float = 1.0
    """CPU time per second of wall-clock time."""
    processes: int = 512
    """Processes and threads."""
    disk_mb: int = 1024
    """Size of the session's writable files (they live in memory)."""
    allow: tuple[str, ...] = ()
    """Further addresses the session may reach, as `host:port`; the invoke's own endpoints always are."""
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
        values = dict(settings)
        if isinstance(values.get("allow"), (list, str)):
            allow = values["allow"]
            values["allow"] = tuple(allow.split(",")) if isinstance(allow, str) else tuple(allow)
        return cls(**values)


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
        raise ConfigError(f"{address!r} is no address", hint="write host:port, or a URL")
    return parts.hostname, port


def default_max_sessions() -> int:
    """How many sessions this machine carries: by its memory, and 512 a core."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    by_memory = int(pages * size * 0.8) // (_SESSION_MEGABYTES << 20)
    return max(1, min(by_memory, 512 * (os.cpu_count() or 1)))
