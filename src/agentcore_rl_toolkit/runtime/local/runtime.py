"""`LocalRuntime`: AgentCore Runtime on one machine. Starts and ends everything; the other modules do the work."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from ...common.http_guard import reachable_host
from ...common.object_repr import object_repr
from ...common.private_loop import PrivateLoop
from ...errors import ConfigError, RuntimeFault
from ..base import CommandEvent, Invocation
from .agent import LocalAgent
from .agent_source import AgentSource
from .sandbox.cgroup import CONTROLLERS, CgroupTree
from .sandbox.namespaces import PROTECTIONS
from .sandbox.probe import default_max_sessions, probe
from .server.access import Access, choose_token, store_folders
from .server.aws_wire import WireServer
from .server.local_s3 import LocalS3
from .sessions.live_sessions import LiveSessions
from .sessions.local_session import LocalSession, SessionContext
from .sessions.store_proxy import StoreProxy
from .template.template_keeper import Machine

_LONGEST_FOLDER = 60


class LocalRuntime:
    """Runs agents in sandboxed sessions on this machine, and serves them on AWS's wire.

    One agent: `async with LocalRuntime("rl_app.py") as runtime`, then `runtime.arn`, `runtime.endpoint_url`,
    `await runtime.invoke(…)`. Without an event loop: `with LocalRuntime("rl_app.py") as runtime`. Several agents: pass
    a list of `AgentSource`, and pick one with `runtime.agent(name)`.
    """

    def __init__(
        self,
        agents: str | os.PathLike[str] | AgentSource | Sequence[AgentSource],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        max_sessions: int | None = None,
        spares: int = 4,
        protections: Sequence[str] | None = None,
        buckets: str | os.PathLike[str] | None = None,
        stores: Sequence[str | os.PathLike[str]] | None = None,
        token: str | None = None,
        allow_hosts: Sequence[str] = (),
    ) -> None:
        """`stores` are the folders, with all below them, that callers over HTTP may store results in (default: the
        current one). `token` is for callers who are not this user on this machine (default: that of
        `AGENTCORE_RL_RUNTIME_TOKEN`, or a new one). `allow_hosts` are further host names of the runtime.
        """
        if isinstance(agents, (str, os.PathLike)):
            agents = AgentSource.parse(agents)
        self._sources = [agents] if isinstance(agents, AgentSource) else list(agents)
        names = [source.name for source in self._sources]
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"agents need distinct names, not {names}", hint="name them in a config file")
        for name in protections or ():
            if name not in PROTECTIONS:
                raise ConfigError(f"unknown protection {name!r}", hint=f"known: {', '.join(PROTECTIONS)}")
        self.max_sessions = max_sessions or default_max_sessions()
        self.host, self.port = host, port
        self.stores = store_folders(stores)
        """The folders that callers over HTTP may name as their store."""
        self.token = choose_token(token)
        """boto3 sends it as its access key id."""
        self.access = Access(self.token, host=host, allow_hosts=allow_hosts)
        self.agents: dict[str, LocalAgent] = {}
        self.missing: dict[str, str] = {}
        """The protections that this machine lacks, with the reason."""
        self.counts = {"started": 0, "ended": 0, "refused": 0, "lost": 0}
        self._spares = spares
        self._wanted = PROTECTIONS if protections is None else protections
        self._buckets = Path(buckets) if buckets is not None else None
        self._machine: Machine | None = None
        self._table: LiveSessions | None = None
        self._store_proxy: StoreProxy | None = None
        self._server: WireServer | None = None
        self._watching: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LocalRuntime:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> BlockingRuntime:
        self._blocking = BlockingRuntime(self)
        return self._blocking

    def __exit__(self, *_: object) -> None:
        self._blocking.close()

    def __repr__(self) -> str:
        agents = [source.name for source in self._sources]
        return object_repr(self, *agents, endpoint_url=self.endpoint_url, sessions=len(self.sessions))

    @property
    def arn(self) -> str:
        """The ARN of the only agent."""
        return self._only_agent().arn

    @property
    def endpoint_url(self) -> str:
        """For `boto3.client("bedrock-agentcore", endpoint_url=…)`."""
        return f"http://{reachable_host(self.host)}:{self.port}"

    @property
    def sessions(self) -> list[LocalSession]:
        """All sessions that are not quite gone."""
        return [] if self._table is None else self._table.assigned

    @property
    def protections(self) -> list[str]:
        """What sessions are protected by."""
        return [] if self._machine is None else list(self._machine.protections)

    @property
    def machine(self) -> Machine:
        """What the runtime holds of the machine while it runs."""
        assert self._machine is not None, "the runtime has not been started"
        return self._machine

    def agent(self, name: str) -> LocalAgent:
        """An agent by its name."""
        if name not in self.agents:
            known = ", ".join(self.agents)
            raise RuntimeFault(f"agent {name!r} does not exist, only {known}", code="ResourceNotFoundException")
        return self.agents[name]

    def log_of(self, session_id: str) -> Path | None:
        """The log of the latest session whose id is this or starts so; None if there was none."""
        return None if self._table is None else self._table.log_of(session_id)

    def printed(self, session_id: str) -> bytes | None:
        """The end of what a session printed, also after it has ended; None if there was no such session."""
        return None if self._table is None else self._table.printed(session_id)

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        """Invoke the only agent."""
        return await self._only_agent().invoke(session_id, payload, content_type=content_type)

    async def stop(self, session_id: str) -> None:
        """Stop a session of the only agent."""
        await self._only_agent().stop(session_id)

    def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        """Run a command in a session of the only agent."""
        return self._only_agent().command(session_id, command, timeout=timeout)

    async def start(self) -> None:
        """Probe the machine's protections, then listen. An agent's template starts with its first session."""
        found = await asyncio.to_thread(probe)
        self.missing = {name: reason for name, reason in found.items() if reason is not None}
        used = [name for name in PROTECTIONS if name in self._wanted and found[name] is None]
        self._machine = Machine(_make_state_folder(), used, CgroupTree([c for c in used if c in CONTROLLERS]))
        s3 = LocalS3(self._buckets or self._machine.state / "buckets")
        self._store_proxy = StoreProxy(s3)
        self._server = WireServer(self, s3)
        try:
            await self._store_proxy.start()
            context = SessionContext(self._machine, self._store_proxy, self.token)
            self._table = LiveSessions(context, self.max_sessions, self.counts)
            for source in self._sources:
                self.agents[source.name] = LocalAgent(source, self._machine, self._table, spares=self._spares)
            await self._server.start()
        except BaseException:
            await self.aclose()
            raise
        self.port = context.port = self._server.port
        context.endpoint_url = self.endpoint_url
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

    def _only_agent(self) -> LocalAgent:
        if len(self.agents) != 1:
            raise ConfigError(f"this runtime has {len(self.agents)} agents", hint="pick one with runtime.agent(name)")
        return next(iter(self.agents.values()))


def _make_state_folder() -> Path:
    """The runtime's own folder; the paths of the sockets in it must be short."""
    home = tempfile.gettempdir()
    state = Path(tempfile.mkdtemp(prefix="agentcore-rl-", dir=home if len(home) < _LONGEST_FOLDER else "/tmp"))
    (state / "logs").mkdir()
    return state


class BlockingRuntime:
    """A local runtime for programs without an event loop: `with LocalRuntime(…) as runtime`."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime
        self._loop = PrivateLoop("local-runtime")
        try:
            self._loop.run(runtime.start())
        except BaseException:
            self._loop.close()
            raise
        self.endpoint_url, self.token, self.protections = runtime.endpoint_url, runtime.token, runtime.protections

    @property
    def arn(self) -> str:
        """The ARN of the only agent."""
        return self._runtime.arn

    def invoke(self, session_id: str, payload: bytes) -> bytes:
        """Invoke the only agent; returns the whole answer."""

        async def read() -> bytes:
            return await (await self._runtime.invoke(session_id, payload)).read()

        return self._loop.run(read())

    def stop(self, session_id: str) -> None:
        """Stop a session."""
        self._loop.run(self._runtime.stop(session_id))

    def command(self, session_id: str, command: str, *, timeout: int = 300) -> list[CommandEvent]:
        """Run a shell command inside a live session; returns all its events."""

        async def collect() -> list[CommandEvent]:
            return [event async for event in self._runtime.command(session_id, command, timeout=timeout)]

        return self._loop.run(collect())

    def close(self) -> None:
        """End all sessions, the runtime and its thread."""
        try:
            self._loop.run(self._runtime.aclose())
        finally:
            self._loop.close()
