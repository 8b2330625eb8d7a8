"""`LocalRuntime`: AgentCore Runtime on one machine, for the program that starts it.

Its supervisor (`supervisor/`) is a separate process, which starts, watches, connects and ends sessions, so that this
costs the program's interpreter nothing: a trainer shares no lock with it. The program holds one link to it. If the
supervisor is killed, the runtime starts another on the same port, and stores `session_lost` for every rollout that the
killed one left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multidict import CIMultiDict

from ...common.http_guard import reachable_host
from ...common.object_repr import object_repr
from ...common.private_loop import PrivateLoop
from ...errors import ConfigError, LinkBroken, RuntimeFault
from ..base import CommandEvent, Invocation
from ..hosting.pending_rollouts import PendingRollouts
from ..hosting.request_checks import check_command, check_payload, check_session_id, rollout_request
from .agent_source import AgentSource
from .sessions.places import Places
from .supervisor.child import SupervisorChild
from .supervisor.link import APP, SupervisorLink, read_data
from .supervisor.runtime_settings import RuntimeSettings
from .template.app_frames import AppAnswer

logger = logging.getLogger(__name__)

_MOST_REMEMBERED = 100_000


@dataclass(frozen=True)
class SessionStatus:
    """A session of a local runtime, as it was when it was asked for."""

    id: str
    agent: str
    state: str
    """`idle`, `busy` or `stopping`."""
    seconds: float
    """Since it started."""

    @property
    def stopping(self) -> bool:
        return self.state == "stopping"


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
        workers: int | None = None,
    ) -> None:
        """`stores` are the folders, with all below them, that callers over HTTP may store results in (default: the
        current one). `token` is for callers who are not this user on this machine (default: that of
        `AGENTCORE_RL_RUNTIME_TOKEN`, or a new one). `allow_hosts` are further host names of the runtime. `workers` is
        the number of processes that supervise sessions (default: one for every four cores).
        """
        self._open(
            RuntimeSettings.make(
                agents,
                host=host,
                port=port,
                max_sessions=max_sessions,
                spares=spares,
                protections=protections,
                buckets=buckets,
                stores=stores,
                token=token,
                allow_hosts=allow_hosts,
                workers=workers,
            )
        )

    def _open(self, settings: RuntimeSettings, places: Places | None = None) -> None:
        self._settings, self._places = settings, places
        self.host, self.port = settings.host, settings.port
        self.token, self.stores, self.max_sessions = settings.token, settings.stores, settings.max_sessions
        self.agents = {source.name: LinkedAgent(self, source) for source in self._settings.agents}
        self.protections: list[str] = []
        """What sessions are protected by."""
        self.missing: dict[str, str] = {}
        """The protections that this machine lacks, with the reason."""
        self._child: SupervisorChild | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    def of_worker(cls, settings: RuntimeSettings, places: Places) -> LocalRuntime:
        """One of a front's workers, which shares its places with the others."""
        runtime = cls.__new__(cls)
        runtime._open(settings, places)
        return runtime

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
        agents = [source.name for source in self._settings.agents]
        running = {} if self._child is None else {"endpoint_url": self.endpoint_url, "pid": self.pid}
        return object_repr(self, *agents, **running)

    @property
    def arn(self) -> str:
        """The ARN of the only agent."""
        return self._only_agent().arn

    @property
    def endpoint_url(self) -> str:
        """For `boto3.client("bedrock-agentcore", endpoint_url=…)`."""
        return f"http://{reachable_host(self.host)}:{self.port}"

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        return 0 if self._child is None else self._child.pid

    @property
    def sessions(self) -> list[SessionStatus]:
        """All sessions that are not quite gone. Asks the supervisor, from any thread."""
        found = self._describe()["sessions"]
        return [SessionStatus(one["session_id"], one["agent"], one["state"], one["seconds"]) for one in found]

    @property
    def counts(self) -> dict[str, int]:
        """How many sessions were `started`, `ended`, `refused` and `lost`. Asks the supervisor, from any thread."""
        return dict(self._describe()["counts"])

    def agent(self, name: str) -> LinkedAgent:
        """An agent by its name."""
        if name not in self.agents:
            known = ", ".join(self.agents)
            raise RuntimeFault(f"agent {name!r} does not exist, only {known}", code="ResourceNotFoundException")
        return self.agents[name]

    async def printed(self, session_id: str) -> bytes | None:
        """The end of what a session printed, even after it has ended; None if there was no such session."""
        answer = await self.ask("/printed", {"session": session_id})
        data = b"".join([piece async for piece in read_data(answer)])
        return data if answer.headers.get("known") == "yes" else None

    async def log_of(self, session_id: str) -> Path | None:
        """The log of the latest session whose id is this or starts so; None if there was none."""
        answer = await self.ask("/log", {"session": session_id})
        path = b"".join([piece async for piece in read_data(answer)]).decode()
        return Path(path) if path else None

    async def describe(self) -> dict[str, Any]:
        """For `runtime ps`."""
        answer = await self.ask("/sessions", {})
        found: dict[str, Any] = json.loads(b"".join([piece async for piece in read_data(answer)]))
        return found

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
        """Start the supervisor; returns when it listens. An agent's template starts with its first session."""
        child = SupervisorChild(dataclasses.replace(self._settings, port=self.port), self._killed, self._places)
        ready = await child.start()
        self._child, self.port = child, ready["port"]
        self.protections, self.missing = ready["protections"], ready["missing"]

    async def aclose(self) -> None:
        """End all sessions and remove everything the runtime made."""
        self._closed = True
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait({self._restarting})
        if self._child is not None:
            await self._child.close()

    async def ask(self, path: str, headers: Mapping[str, str], body: bytes = b"") -> AppAnswer:
        """Send the supervisor a request; raises its fault."""
        if self._restarting is not None and not self._restarting.done():
            await asyncio.wait({self._restarting})
        try:
            return await self._link().ask(path, headers, body)
        except LinkBroken:
            raise _ended() from None

    def _link(self) -> SupervisorLink:
        if self._child is None or self._closed:
            raise RuntimeFault("the runtime is not running", hint="call start() first")
        return self._child.link

    def _describe(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._link().ask_now("/sessions")
        except LinkBroken:
            raise _ended() from None
        return found

    def _killed(self) -> None:
        self._restarting = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        """Clean up after a killed supervisor, start another, and report the rollouts that went with the first."""
        assert self._child is not None
        logger.error("the runtime's supervisor (process %d) was killed; starting another", self._child.pid)
        await self._child.close()
        if self._places is not None:
            self._places.give_back(self._places.held)
        try:
            await self.start()
        except Exception as error:
            logger.error("the runtime's supervisor could not be started again: %s", error)
        await asyncio.gather(*(agent.report_lost() for agent in self.agents.values()))

    def _only_agent(self) -> LinkedAgent:
        if len(self.agents) != 1:
            raise ConfigError(f"this runtime has {len(self.agents)} agents", hint="pick one with runtime.agent(name)")
        return next(iter(self.agents.values()))


class LinkedAgent:
    """One agent of a local runtime; a `Runtime`."""

    def __init__(self, runtime: LocalRuntime, source: AgentSource) -> None:
        self.source = source
        self._runtime = runtime
        self._invoked: dict[str, bytes] = {}
        """The last rollout that each session was asked for, until it is stopped."""

    @property
    def arn(self) -> str:
        return self.source.arn

    async def invoke(
        self,
        session_id: str,
        payload: bytes,
        *,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Invocation:
        """Send `payload` to the session's app; the first invoke starts the session."""
        check_session_id(session_id)
        check_payload(payload)
        if b"_rollout" in payload:
            self._remember(session_id, payload)
        passed = {APP + name.lower(): value for name, value in (headers or {}).items()}
        sent = self._names(session_id) | {"content-type": content_type} | passed
        answer = await self._runtime.ask("/invoke", sent, payload)
        returned = {name.removeprefix(APP): value for name, value in answer.headers.items() if name.startswith(APP)}
        status, kind = int(answer.headers["status"]), answer.headers["kind"]
        return Invocation(session_id, status, kind, read_data(answer), CIMultiDict(returned))

    async def stop(self, session_id: str) -> None:
        """End the session; returns when nothing of it is left."""
        check_session_id(session_id)
        answer = await self._runtime.ask("/stop", self._names(session_id))
        answer.close()
        self._invoked.pop(session_id, None)

    async def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        """Run a shell command inside a live session."""
        async with contextlib.aclosing(await self.new_command(session_id, command, timeout)) as events:
            async for event in events:
                yield event

    async def new_command(self, session_id: str, command: str, timeout: int) -> AsyncGenerator[CommandEvent, None]:
        """The events of a command; raises a fault at once if it can't start."""
        check_session_id(session_id)
        check_command(command, timeout)
        headers = self._names(session_id) | {"timeout": str(timeout)}
        return _read_events(await self._runtime.ask("/command", headers, command.encode()))

    async def aclose(self) -> None:
        """End the runtime, with all its agents."""
        await self._runtime.aclose()

    async def report_lost(self) -> None:
        """Store `session_lost` for the rollouts of a killed supervisor's sessions that have no result."""
        invoked, self._invoked = self._invoked, {}
        environ = self.source.store_variables(self._runtime.endpoint_url, self._runtime.token)
        for session_id, payload in invoked.items():
            with contextlib.suppress(RuntimeFault):  # a request that was refused
                pending = PendingRollouts()
                pending.add(rollout_request(payload), session_id)
                await pending.report_lost("the runtime's supervisor was killed", environ)

    def _names(self, session_id: str) -> dict[str, str]:
        return {"agent": self.source.name, "session": session_id}

    def _remember(self, session_id: str, payload: bytes) -> None:
        self._invoked[session_id] = payload
        if len(self._invoked) > _MOST_REMEMBERED:
            del self._invoked[next(iter(self._invoked))]


async def _read_events(answer: AppAnswer) -> AsyncGenerator[CommandEvent, None]:
    async with contextlib.aclosing(read_data(answer)) as events:
        async for event in events:
            yield CommandEvent(**json.loads(event))


def _ended() -> RuntimeFault:
    return RuntimeFault("the runtime's supervisor ended", hint="send the request again")


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
