"""`Supervisor`: runs agents in sandboxed sessions, and serves them on AWS's wire; the other modules do the work."""

from __future__ import annotations

import asyncio
import shutil
import site
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....common.http_guard import reachable_host
from ....errors import RuntimeFault
from ..agent import LocalAgent
from ..sandbox.cgroup import CONTROLLERS, CgroupTree
from ..sandbox.namespaces import PROTECTIONS
from ..sandbox.probe import probe
from ..server.access import Access
from ..server.aws_wire import WireServer
from ..server.local_s3 import LocalS3
from ..sessions.live_sessions import LiveSessions
from ..sessions.local_session import LocalSession, SessionContext
from ..sessions.places import Places
from ..sessions.store_proxy import StoreProxy
from ..template.template_keeper import Machine
from .runtime_settings import RuntimeSettings

if TYPE_CHECKING:
    from .front import ShardedAgent

_LONGEST_FOLDER = 60


class Supervisor:
    """All of a local runtime, on the event loop that starts it."""

    def __init__(self, settings: RuntimeSettings, places: Places | None = None) -> None:
        """`places` are those of a front's worker, which has no port of its own."""
        self.settings = settings
        self._places = places or Places.make(settings.max_sessions)[0]
        self.port = settings.port
        self.access = Access(settings.token, host=settings.host, allow_hosts=settings.allow_hosts)
        self.agents: dict[str, LocalAgent | ShardedAgent] = {}
        self.missing: dict[str, str] = {}
        """The protections that this machine lacks, with the reason."""
        self.counts = {"started": 0, "ended": 0, "refused": 0, "lost": 0}
        self._machine: Machine | None = None
        self._table: LiveSessions | None = None
        self._store_proxy: StoreProxy | None = None
        self._server: WireServer | None = None
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Supervisor:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def endpoint_url(self) -> str:
        """For `boto3.client("bedrock-agentcore", endpoint_url=…)`."""
        return f"http://{reachable_host(self.settings.host)}:{self.port}"

    @property
    def sessions(self) -> list[LocalSession]:
        """All sessions that are not quite gone."""
        return [] if self._table is None else self._table.assigned

    @property
    def machine(self) -> Machine:
        """What the runtime holds of the machine while it runs."""
        assert self._machine is not None, "the runtime has not been started"
        return self._machine

    def agent(self, name: str) -> LocalAgent | ShardedAgent:
        """An agent by its name."""
        if name not in self.agents:
            known = ", ".join(self.agents)
            raise RuntimeFault(f"agent {name!r} does not exist, only {known}", code="ResourceNotFoundException")
        return self.agents[name]

    async def log_of(self, session_id: str) -> Path | None:
        """The log of the latest session whose id is this or starts so; None if there was none."""
        return None if self._table is None else self._table.log_of(session_id)

    async def read_output(self, session_id: str) -> bytes | None:
        """The end of what a session printed, even after it has ended; None if there was no such session."""
        return None if self._table is None else self._table.printed(session_id)

    async def describe(self) -> dict[str, Any]:
        """For `runtime ps`."""
        return {
            "max_sessions": self.settings.max_sessions,
            "counts": self.counts,
            "missing": self.missing,
            "sessions": [session.describe() for session in self.sessions],
        }

    def introduce(self) -> dict[str, Any]:
        """For the program that started this process: what stays the same, and what would be left if it were killed."""
        machine = self.machine
        traces = {"state": str(machine.state), "groups": machine.cgroups.folders}
        return {"port": self.port, "protections": machine.protections, "missing": self.missing, "traces": traces}

    async def start(self) -> None:
        """Probe the machine's protections, then listen. An agent's template starts with its first session."""
        settings = self.settings
        found = await asyncio.to_thread(probe)
        self.missing = {name: reason for name, reason in found.items() if reason is not None}
        used = [name for name in PROTECTIONS if name in settings.protections and found[name] is None]
        user_site = site.getusersitepackages() if site.ENABLE_USER_SITE else None
        groups = CgroupTree([c for c in used if c in CONTROLLERS])
        self._machine = Machine(_make_state_folder(), used, groups, user_site)
        s3 = LocalS3(Path(settings.buckets) if settings.buckets else self._machine.state / "buckets")
        self._store_proxy = StoreProxy(s3)
        if settings.front is None:
            self._server = WireServer(self, s3)
        try:
            await self._store_proxy.start()
            context = SessionContext(self._machine, self._store_proxy, settings.token)
            self._table = LiveSessions(context, self._places, settings.max_sessions, self.counts)
            for source in settings.agents:
                self.agents[source.name] = LocalAgent(source, self._machine, self._table, spares=settings.spares)
            if self._server is not None:
                await self._server.start()
                self.port = self._server.port
        except BaseException:
            await self.aclose()
            raise
        context.port, context.endpoint_url = self.port, settings.front or self.endpoint_url
        self._watching = asyncio.create_task(self._table.watch())

    async def aclose(self) -> None:
        """End all sessions and remove everything the runtime made."""
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*(agent.aclose() for agent in self.agents.values()))
        if self._server is not None:
            await self._server.close()
        if self._store_proxy is not None:
            await self._store_proxy.close()
        if self._machine is not None:
            self._machine.cgroups.close()
            await asyncio.to_thread(shutil.rmtree, self._machine.state, ignore_errors=True)


def _make_state_folder() -> Path:
    """The runtime's own folder; the paths of the sockets in it must be short."""
    home = tempfile.gettempdir()
    state = Path(tempfile.mkdtemp(prefix="agentcore-rl-", dir=home if len(home) < _LONGEST_FOLDER else "/tmp"))
    (state / "logs").mkdir()
    return state
