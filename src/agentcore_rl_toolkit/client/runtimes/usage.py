"""A client's usage: the figures of a bill, which `plan` predicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .runtime_calls import RuntimeCalls

BYTES_READ = "bytes_read"
_COUNTS = ("sessions", "invokes", "stops", "throttles", "failures", "bytes_read")


@dataclass(frozen=True)
class ClientUsage:
    """Totals of one client, since it was made."""

    sessions: int
    """Sessions that runtimes accepted."""
    session_seconds: float
    """Seconds from accepted invokes to stops, of all sessions that were stopped."""
    invokes: int
    stops: int
    throttles: int
    """Requests to runtimes that came too fast for the quota."""
    failures: int
    """Requests to runtimes that failed otherwise; a full runtime doesn't count."""
    bytes_read: int
    """Bytes of results read."""
    store_requests: Mapping[str, int]
    """The client's requests to S3 and SQS, by operation. Those of sessions are not among them."""
    runtimes: Mapping[str, int]
    """Sessions of each runtime, by its ARN."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"session_seconds": round(self.session_seconds, 3)}


def usage_of(calls: Iterable[RuntimeCalls], of_store: Mapping[str, int]) -> ClientUsage:
    """The sum over all runtimes, and the store's."""
    requests = {name: of_store[name] for name in sorted(of_store) if name != BYTES_READ}
    shared = ClientUsage(0, 0.0, 0, 0, 0, 0, of_store.get(BYTES_READ, 0), requests, {})
    return total([shared, *map(_of_runtime, calls)])


def _of_runtime(calls: RuntimeCalls) -> ClientUsage:
    return ClientUsage(
        **asdict(calls.usage), bytes_read=0, store_requests={}, runtimes={calls.arn: calls.usage.sessions}
    )


def total(usages: Iterable[ClientUsage]) -> ClientUsage:
    """The sum over several clients."""
    numbers, requests, sessions = Counter[str](), Counter[str](), Counter[str]()
    seconds = 0.0
    for usage in usages:
        seconds += usage.session_seconds
        requests.update(usage.store_requests)
        sessions.update(usage.runtimes)
        numbers.update({name: getattr(usage, name) for name in _COUNTS})
    counts = {name: numbers[name] for name in _COUNTS}
    return ClientUsage(session_seconds=seconds, store_requests=dict(requests), runtimes=dict(sessions), **counts)


def sum_used(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of what several processes used, each name by itself.

    >>> sum_used([{"sessions": 2, "judge": {"calls": 1}}, {"sessions": 3}])
    {'sessions': 5, 'judge': {'calls': 1}}
    """
    used: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, Mapping):
                used[name] = sum_used([used.get(name, {}), value])
            else:
                used[name] = round(used.get(name, 0) + value, 9)
    return used
