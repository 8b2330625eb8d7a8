"""`LocalRuntime`: AgentCore Runtime on one machine. Agents, their sessions, and what starts and ends them.

The AWS wire in front of it is `wire.py`; what isolates a session is `sandbox.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...common.http_guard import reachable_host
from ...errors import ConfigError, RuntimeFault
from ..base import CommandEvent, Invocation
from ..hosting.request_checks import check_command, check_payload, check_session_id, rollout_request
from ..hosting.session_app import SESSION_HEADER
from .agent_templates import AgentSource, TemplateKeeper
from .blocking import BlockingRuntime
from .policy import default_max_sessions
from .sandbox.cgroup import CgroupTree
from .sandbox.namespaces import PROTECTIONS
from .sandbox.probe import probe
from .server.access import Access, check_store, choose_token, store_folders
from .server.local_s3 import LocalS3
from .sessions.pool import SessionPool
from .sessions.session import LocalSession, Shared
from .sessions.store_proxy import StoreProxy

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_LOGS_KEPT = 1000


class LocalAgent:
    """One agent of a local runtime; a `Runtime`."""

    def __init__(self, runtime: LocalRuntime, source: AgentSource, keeper: TemplateKeeper, spares: int) -> None:
        self.source, self.keeper = source, keeper
        self.pool = SessionPool(keeper, lambda: runtime._new_session(self), spares)
        self._runtime = runtime
        self._tokens, self._refilled = source.tps_limit or 0.0, time.monotonic()
        self.sessions: dict[str, LocalSession] = {}
        self._starting: dict[str, asyncio.Task[LocalSession]] = {}

    @property
    def arn(self) -> str:
        """The agent's ARN."""
        return self.source.arn

    async def invoke(
        self,
        session_id: str,
        payload: bytes,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        stores: Sequence[Path] | None = None,
    ) -> Invocation:
        """Send `payload` to the session's app, starting the session if there is none.

        `stores` limits the folders that it may name as its store; None, for the user's own code, doesn't.
        """
        check_session_id(session_id)
        check_payload(payload)
        self._take_token()
        parsed = rollout_request(payload)
        if stores is not None:
            check_store(parsed, stores)
        sent = {"Content-Type": content_type, SESSION_HEADER: session_id} | dict(headers or {})
        sent.setdefault("X-Amzn-Bedrock-AgentCore-Runtime-Request-Id", str(uuid.uuid4()))
        session = await self._session(session_id, parsed)
        return await session.invoke(payload, parsed, sent)

    async def stop(self, session_id: str) -> None:
        """End the session; returns when nothing of it is left."""
        check_session_id(session_id)
        self._take_token()
        session = self.sessions.get(session_id)
        if session is None:
            raise RuntimeFault(f"there is no session {session_id}", code="ResourceNotFoundException")
        await asyncio.shield(session.end("the session was stopped"))

    async def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        """Run a shell command inside a live session."""
        async with contextlib.aclosing(self.new_command(session_id, command, timeout)) as events:
            async for event in events:
                yield event

    def new_command(self, session_id: str, command: str, timeout: int) -> AsyncGenerator[CommandEvent, None]:
        """The events of a command that starts when they are asked for; a fault at once if it can't."""
        check_session_id(session_id)
        check_command(command, timeout)
        session = self.sessions.get(session_id)
        if session is None or session.stopping:
            raise RuntimeFault(f"there is no session {session_id}", code="ResourceNotFoundException")
        return session.command(command, timeout)

    async def aclose(self) -> None:
        """End all of the agent's sessions, and its templates."""
        await self.pool.close()
        await asyncio.gather(*(session.end("the runtime was stopped") for session in list(self.sessions.values())))
        await self.keeper.close()

    async def _session(self, session_id: str, parsed: dict[str, Any]) -> LocalSession:
        """The session of that id: the live one, or a new one that everybody who asks meanwhile waits for."""
        while True:
            starting = self._starting.get(session_id)
            if starting is not None:
                return await asyncio.shield(starting)
            session = self.sessions.get(session_id)
            if session is None:
                task = asyncio.get_running_loop().create_task(self._start(session_id, parsed))
                self._starting[session_id] = task
                task.add_done_callback(lambda _: self._starting.pop(session_id, None))
                task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its callers may be gone
                return await asyncio.shield(task)
            if not session.stopping:
                return session
            await session.ended.wait()  # a stopped session that is invoked again starts afresh

    async def _start(self, session_id: str, parsed: dict[str, Any]) -> LocalSession:
        self._runtime._check_room()
        self._runtime._assigned += 1
        try:
            session = await self.pool.take()
        except BaseException:
            self._runtime._assigned -= 1
            raise
        self.sessions[session_id] = session
        self._runtime._has_started(session, session_id)
        await session.assign(session_id, parsed)
        return session

    def _take_token(self) -> None:
        limit = self.source.tps_limit
        if not limit:
            return
        now = time.monotonic()
        self._tokens = min(limit, self._tokens + (now - self._refilled) * limit)
        self._refilled = now
        if self._tokens < 1:
            wait = (1 - self._tokens) / limit
            raise RuntimeFault(f"more than {limit:g} requests per second", code="ThrottlingException", retry_after=wait)
        self._tokens -= 1


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
        """`stores` are the folders in which callers over HTTP may have results stored, with all below them (default:
        the current one). `token` is what callers need who are not this user on this machine (default:
        `AGENTCORE_RL_RUNTIME_TOKEN`, or a new one). `allow_hosts` are further names that it is reached under.
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
        """What lets callers in; boto3 sends it as its access key id."""
        self.access = Access(self.token, host=host, allow_hosts=allow_hosts)
        self.agents: dict[str, LocalAgent] = {}
        self.missing: dict[str, str] = {}
        """Protections that do not hold here, with the reason."""
        self.counts = {"started": 0, "ended": 0, "refused": 0, "lost": 0}
        self._spares = spares
        self._wanted = list(protections) if protections is not None else None
        self._buckets = Path(buckets) if buckets is not None else None
        self._all: set[LocalSession] = set()
        self._assigned = 0
        self._logs: dict[str, Path] = {}
        self._shared: Shared | None = None
        self._janitor: asyncio.Task[None] | None = None
        self._asked: dict[LocalSession, asyncio.Task[None]] = {}
        self._server: Any = None
        self._next = 0

    async def __aenter__(self) -> LocalRuntime:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> BlockingRuntime:
        self._blocking = BlockingRuntime(self)
        return self._blocking.start()

    def __exit__(self, *_: object) -> None:
        self._blocking.close()

    @property
    def arn(self) -> str:
        """The ARN of the only agent."""
        return self._only().arn

    @property
    def endpoint_url(self) -> str:
        """What `boto3.client("bedrock-agentcore", endpoint_url=…)` takes."""
        return f"http://{reachable_host(self.host)}:{self.port}"

    @property
    def sessions(self) -> list[LocalSession]:
        """All sessions that are not quite gone."""
        return sorted((session for session in self._all if session.id), key=lambda session: session.n)

    @property
    def protections(self) -> list[str]:
        """What sessions run with."""
        return [] if self._shared is None else list(self._shared.protections)

    @property
    def state(self) -> Path:
        """The runtime's own folder; gone when it is closed."""
        assert self._shared is not None, "the runtime has not been started"
        return self._shared.state

    def agent(self, name: str) -> LocalAgent:
        """An agent by its name."""
        if name not in self.agents:
            known = ", ".join(self.agents)
            raise RuntimeFault(f"there is no agent {name!r}; there is {known}", code="ResourceNotFoundException")
        return self.agents[name]

    def log_of(self, session_id: str) -> Path | None:
        """Where the latest session of that id (or the start of one) printed to; None if there was none."""
        matches = [path for id, path in self._logs.items() if id.startswith(session_id) and path.exists()]
        return matches[-1] if matches else None

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        """Invoke the only agent."""
        return await self._only().invoke(session_id, payload, content_type=content_type)

    async def stop(self, session_id: str) -> None:
        """Stop a session of the only agent."""
        await self._only().stop(session_id)

    def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        """Run a command in a session of the only agent."""
        return self._only().command(session_id, command, timeout=timeout)

    async def start(self) -> None:
        """Find out what holds here, load the agents' templates, listen."""
        from .server.aws_wire import WireServer

        cgroups = CgroupTree()
        found = await asyncio.to_thread(probe, cgroups)
        self.missing = {name: reason for name, reason in found.items() if reason is not None}
        wanted = PROTECTIONS if self._wanted is None else self._wanted
        use = [name for name in PROTECTIONS if found.get(name) is None and name in wanted]
        # Sockets live in it, and their paths must be short.
        home = tempfile.gettempdir()
        state = Path(tempfile.mkdtemp(prefix="agentcore-rl-", dir=home if len(home) < 60 else "/tmp"))
        (state / "logs").mkdir()
        s3 = LocalS3(self._buckets or state / "buckets")
        proxy = StoreProxy(s3)
        await proxy.start()
        cgroups.use_only(use)
        self._shared = Shared(state, use, cgroups, proxy, token=self.token)
        for source in self._sources:
            keeper = TemplateKeeper(source, protections=use, state=state, cgroups=cgroups)
            self.agents[source.name] = LocalAgent(self, source, keeper, self._spares)
        self._server = WireServer(self, s3)
        try:
            await self._server.start()
        except BaseException:
            await self.aclose()
            raise
        self.port = self._shared.port = self._server.port
        self._shared.endpoint_url = self.endpoint_url
        self._janitor = asyncio.create_task(self._tidy())

    async def aclose(self) -> None:
        """End all sessions and remove everything the runtime made."""
        if self._janitor is not None:
            self._janitor.cancel()
        await asyncio.gather(*(agent.aclose() for agent in self.agents.values()))
        if self._server is not None:
            await self._server.close()
        if self._shared is not None:
            await self._shared.store_proxy.close()
            self._shared.cgroups.close()
            await asyncio.to_thread(shutil.rmtree, self._shared.state, ignore_errors=True)

    def _only(self) -> LocalAgent:
        if len(self.agents) != 1:
            raise ConfigError(f"this runtime has {len(self.agents)} agents", hint="pick one with runtime.agent(name)")
        return next(iter(self.agents.values()))

    def _check_room(self) -> None:
        if self._assigned >= self.max_sessions:
            self.counts["refused"] += 1
            raise RuntimeFault(
                f"all {self.max_sessions} sessions of this machine are in use",
                code="ThrottlingException",
                reason="full",
                retry_after=1,
                hint="try again, or raise max_sessions",
            )

    def _new_session(self, agent: LocalAgent) -> LocalSession:
        assert self._shared is not None
        self._next += 1
        session = LocalSession(self._next, agent.source, self._shared)
        self._all.add(session)
        session.on_ended = lambda: self._forget(agent, session)
        return session

    def _has_started(self, session: LocalSession, session_id: str) -> None:
        self.counts["started"] += 1
        self._logs.pop(session_id, None)
        self._logs[session_id] = session.log

    def _forget(self, agent: LocalAgent, session: LocalSession) -> None:
        self._all.discard(session)
        if not session.id:  # a spare that was never needed
            session.log.unlink(missing_ok=True)
            return
        self._assigned -= 1
        self.counts["ended"] += 1
        self.counts["lost"] += session.lost
        if agent.sessions.get(session.id) is session:
            del agent.sessions[session.id]

    async def _tidy(self) -> None:
        """Once a second: end sessions that are idle or too old, keep logs few."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for session in self.sessions:
                try:
                    self._end_if_due(session, time.monotonic())
                except Exception:
                    logger.exception("session %s could not be looked after", session.id)
            self._tidy_logs()

    def _end_if_due(self, session: LocalSession, now: float) -> None:
        policy = session.source.policy
        if session.stopping:
            return
        if now - session.created_at > policy.max_lifetime:
            session.end(f"the session reached its maximum lifetime of {policy.max_lifetime:g} s")
        elif (
            session.app.in_flight == 0
            and now - session.app.used_at > policy.idle_timeout
            and session not in self._asked
        ):
            task = asyncio.get_running_loop().create_task(self._end_if_idle(session))
            self._asked[session] = task  # a session that doesn't answer delays no other
            task.add_done_callback(lambda _: self._asked.pop(session, None))
        elif not session.app.heard and now - session.created_at > policy.start_timeout:
            session.end(f"the app did not answer within {policy.start_timeout:g} s of its start")

    async def _end_if_idle(self, session: LocalSession) -> None:
        if await session.app.ping() == "HealthyBusy":
            session.app.used_at = time.monotonic()
        else:
            session.end(f"the session was idle for {session.source.policy.idle_timeout:g} s")

    def _tidy_logs(self) -> None:
        with contextlib.suppress(OSError):
            logs = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(self.state / "logs"))
            live = {str(session.log) for session in self._all}
            ended = [path for _, path in logs if path not in live]
            for path in ended[: max(0, len(ended) - _LOGS_KEPT)]:
                os.unlink(path)
            if len(self._logs) > 2 * _LOGS_KEPT + len(live):
                self._logs = {id: path for id, path in self._logs.items() if path.exists()}
