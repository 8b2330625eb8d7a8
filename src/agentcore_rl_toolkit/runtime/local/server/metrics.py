"""The runtime's counters, in Prometheus's text format."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime import LocalRuntime


class Metrics:
    """Counts requests; the rest is read off the runtime when asked."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()

    def observe(self, operation: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests[operation, status] += 1
        self._seconds[operation] += seconds  # type: ignore[assignment]

    def render(self, runtime: LocalRuntime) -> str:
        """All of it, as text."""
        lines = [
            "# TYPE agentcore_rl_sessions gauge",
            f"agentcore_rl_sessions {len(runtime.sessions)}",
            "# TYPE agentcore_rl_sessions_max gauge",
            f"agentcore_rl_sessions_max {runtime.max_sessions}",
        ]
        for name, count in runtime.counts.items():
            metric = f"agentcore_rl_sessions_{name}_total"
            lines += [f"# TYPE {metric} counter", f"{metric} {count}"]
        lines.append("# TYPE agentcore_rl_requests_total counter")
        for (operation, status), count in sorted(self._requests.items()):
            lines.append(f'agentcore_rl_requests_total{{operation="{operation}",status="{status}"}} {count}')
        lines.append("# TYPE agentcore_rl_request_seconds_total counter")
        for operation, seconds in sorted(self._seconds.items()):
            lines.append(f'agentcore_rl_request_seconds_total{{operation="{operation}"}} {seconds:.6f}')
        return "\n".join(lines) + "\n"
