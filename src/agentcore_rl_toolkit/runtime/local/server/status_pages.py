"""Pages about the runtime: `/metrics` for Prometheus, `/sessions` for `runtime ps`, `/logs/…` for `runtime logs`."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor

_LARGEST_PAGE = 1 << 20


class StatusPages:
    """Counts requests; reads everything else off the runtime when asked."""

    def __init__(self, runtime: Supervisor) -> None:
        self._runtime = runtime
        self._requests: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/sessions", self._show_sessions)
        app.router.add_get("/logs/{session}", self._show_log)

    def count_request(self, operation: str, status: int, seconds: float) -> None:
        self._requests[operation, status] += 1
        self._seconds[operation] += seconds

    async def _show_metrics(self, request: web.Request) -> web.Response:
        found = await self._runtime.describe()
        lines = [
            "# TYPE agentcore_rl_sessions gauge",
            f"agentcore_rl_sessions {len(found['sessions'])}",
            "# TYPE agentcore_rl_sessions_max gauge",
            f"agentcore_rl_sessions_max {self._runtime.settings.max_sessions}",
        ]
        for name, count in found["counts"].items():
            metric = f"agentcore_rl_sessions_{name}_total"
            lines += [f"# TYPE {metric} counter", f"{metric} {count}"]
        lines.append("# TYPE agentcore_rl_requests_total counter")
        for (operation, status), count in sorted(self._requests.items()):
            lines.append(f'agentcore_rl_requests_total{{operation="{operation}",status="{status}"}} {count}')
        lines.append("# TYPE agentcore_rl_request_seconds_total counter")
        for operation, seconds in sorted(self._seconds.items()):
            lines.append(f'agentcore_rl_request_seconds_total{{operation="{operation}"}} {seconds:.6f}')
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _show_sessions(self, request: web.Request) -> web.Response:
        return web.json_response(await self._runtime.describe())

    async def _show_log(self, request: web.Request) -> web.Response:
        path = await self._runtime.log_of(request.match_info["session"])
        if path is None:
            return web.Response(status=404, text="this session does not exist")
        offset = request.query.get("offset", "0")
        if not re.fullmatch("[0-9]{1,18}", offset):
            return web.json_response({"message": f"offset {offset[:40]!r} is not a number"}, status=400)
        with path.open("rb") as file:
            file.seek(int(offset))
            data = file.read(_LARGEST_PAGE)
        return web.Response(body=data, headers={"X-Next-Offset": str(int(offset) + len(data))})
