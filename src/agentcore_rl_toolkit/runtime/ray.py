"""The runtime on a Ray cluster: each session is an actor, a process on some node.

The only file that imports ray, with the first session. The driver keeps the sessions (`RayRuntime`); the actor
(`ray_actor.py`) calls the agent's app through ASGI, so the app handles rollouts as everywhere else and stores its
results itself. Isolation is Ray's: a process and a copy of the agent's files, not a sandbox. A session's output and
exit code are in Ray's logs, not in its faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from ..common.object_repr import object_repr
from ..errors import ConfigError, RuntimeFault
from .base import SESSION_HEADER, CommandEvent, Invocation
from .hosting.agent_code import find_agent
from .hosting.agent_files import Fingerprint, fingerprint, pack_agent_folder
from .hosting.commands import COMMAND_PATH, read_events
from .hosting.pending_rollouts import PendingRollouts
from .hosting.request_checks import check_command, check_payload, check_session_id, model_variables, rollout_request
from .ray_actor import ActorSpec, SessionActor

logger = logging.getLogger(__name__)

_LONGEST_TEXT = 4000
_MAX_CONCURRENCY = 1000
"""Requests that an actor serves at a time."""


class RayRuntime:
    """Runs an agent's sessions as actors of the Ray cluster that this process is connected to, or connects to.

    `agent` is a path, whose folder is sent to the nodes, or `module:app`, installed on them. `env` is set in each
    session before the agent is imported. `options` are Ray's for an actor: `num_cpus` (0.25 by default, because
    sessions mostly wait for their model), `resources`, `runtime_env`, and so on. A session that the cluster can't
    place within `start_timeout` seconds raises a `ThrottlingException`.

    >>> RayRuntime("my_agents:app").arn
    'arn:aws:bedrock-agentcore:ray:000000000000:runtime/my_agents'
    """

    def __init__(
        self,
        agent: str | os.PathLike[str],
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        idle_timeout: float = 900,
        max_lifetime: float = 28_800,
        start_timeout: float = 120,
        stop_grace: float = 3,
    ) -> None:
        self._name, self._folder, entry = find_agent(agent, name)
        self._spec = ActorSpec(entry, dict(env or {}), idle_timeout, max_lifetime)
        limit = {"max_concurrency": _MAX_CONCURRENCY}
        self._options = {"num_cpus": 0.25} | limit | dict(options or {}) | {"max_restarts": 0}
        self._start_timeout, self._stop_grace = start_timeout, stop_grace
        self._sessions: dict[str, RaySession] = {}
        self._starting: dict[str, asyncio.Task[RaySession]] = {}
        self._actors: Any = None
        self._packed: tuple[Fingerprint | None, Any] = (None, None)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return object_repr(self, self._name, sessions=len(self._sessions))

    @property
    def arn(self) -> str:
        return f"arn:aws:bedrock-agentcore:ray:000000000000:runtime/{self._name}"

    @property
    def sessions(self) -> list[str]:
        """The ids of all live sessions."""
        return list(self._sessions)

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        """Send `payload` to the session's app; the first invoke starts the session."""
        check_session_id(session_id)
        check_payload(payload)
        session = await self._session(session_id, payload)
        return await session.invoke(payload, content_type)

    async def stop(self, session_id: str) -> None:
        """End the session; returns when its actor has ended."""
        check_session_id(session_id)
        session = self._sessions.get(session_id)
        if session is None:
            raise RuntimeFault(f"session {session_id} does not exist", code="ResourceNotFoundException")
        await asyncio.shield(session.end("the session was stopped"))

    async def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        """Run a shell command inside a live session."""
        check_session_id(session_id)
        check_command(command, timeout)
        session = self._sessions.get(session_id)
        if session is None or session.stopping:
            raise RuntimeFault(f"session {session_id} does not exist", code="ResourceNotFoundException")
        async for event in session.command(command, timeout):
            yield event

    async def aclose(self) -> None:
        """End all sessions. The connection to the cluster stays."""
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        await asyncio.gather(*(session.end("the runtime was closed") for session in list(self._sessions.values())))

    async def __aenter__(self) -> RayRuntime:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _session(self, session_id: str, payload: bytes) -> RaySession:
        """The live session of that id, or a new one; requests that come while it starts wait for the same one."""
        session = self._sessions.get(session_id)
        if session is not None and not session.stopping:
            return session
        if session is not None:
            await asyncio.shield(session.end(""))  # a stopped session that is invoked again starts afresh
        if session_id not in self._starting:
            task = asyncio.get_running_loop().create_task(self._start(session_id, payload))
            self._starting[session_id] = task
            task.add_done_callback(lambda _: self._starting.pop(session_id, None))
        return await asyncio.shield(self._starting[session_id])

    async def _start(self, session_id: str, payload: bytes) -> RaySession:
        variables = model_variables(rollout_request(payload))
        actors, code = await asyncio.to_thread(self._prepare)
        import ray

        actor = actors.remote()
        try:
            await asyncio.wait_for(_result(actor.wait_for_place.remote()), self._start_timeout)
        except ray.exceptions.RayError as error:
            raise RuntimeFault(f"the cluster did not start a session: {error}") from error
        except asyncio.TimeoutError:
            ray.kill(actor)
            raise RuntimeFault(
                f"the cluster could not place a session within {self._start_timeout:g} s",
                code="ThrottlingException",
                reason="full",
                hint=f"stop sessions, add nodes, or lower options, which are {self._options}",
            ) from None
        problem = await self._load(actor, variables, code)
        if problem is not None:
            ray.kill(actor)
            message = f"agent {self._name} could not be imported:\n{problem}"
            raise RuntimeFault(message, code="RuntimeClientError", reason="agent")
        session = RaySession(session_id, actor, self._stop_grace, self._spec.env)
        self._sessions[session_id] = session
        session.watch(lambda: self._sessions.pop(session_id, None))
        return session

    async def _load(self, actor: Any, variables: dict[str, str], code: Any) -> str | None:
        import ray

        spec = replace(self._spec, env=self._spec.env | variables)
        try:
            loaded: str | None = await asyncio.wait_for(_result(actor.load.remote(spec, code)), self._start_timeout)
        except ray.exceptions.RayError as error:
            return _death_reason(error)
        except asyncio.TimeoutError:
            return f"the import took over {self._start_timeout:g} s"
        return loaded

    def _prepare(self) -> tuple[Any, Any]:
        """The actors' class, and the agent's folder as an object of the cluster, put there again when it changes."""
        with self._lock:
            if self._actors is None:
                self._actors = self._connect()
            if not self._spec.entry.endswith(".py"):
                return self._actors, None
            now = fingerprint(self._folder, self._packed[0])
            if self._packed[0] != now:
                import ray

                self._packed = (now, ray.put(pack_agent_folder(self._folder)))
            return self._actors, self._packed[1]

    def _connect(self) -> Any:
        try:
            import ray
            import ray.util.client
        except ImportError:
            raise ConfigError("ray is not installed", hint="pip install 'agentcore-rl-toolkit[ray]'") from None
        if not ray.is_initialized():
            ray.init()  # the cluster of RAY_ADDRESS, or one on this machine alone
        if ray.util.client.ray.is_connected():
            hint = "run this on a node of the cluster, or as a Ray job"
            raise ConfigError("Ray Client can't stream answers", hint=hint)
        return ray.remote(SessionActor).options(**self._options)


class RaySession:
    """One session, as the driver sees it."""

    def __init__(self, id: str, actor: Any, stop_grace: float, env: Mapping[str, str]) -> None:
        self.id = id
        self.stopping = False
        self._actor, self._stop_grace, self._env = actor, stop_grace, env
        self._reason = ""
        self._rollouts = PendingRollouts()
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._on_ended: Any = None

    def watch(self, on_ended: Any) -> None:
        """End the session when its actor dies, is idle or too old; calls `on_ended` afterwards."""
        self._on_ended = on_ended
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        import ray

        try:
            reason = await _result(self._actor.watch.remote())
        except ray.exceptions.RayError as error:
            reason = _death_reason(error)
        except Exception as error:
            logger.exception("session %s can't be watched any more; ending it", self.id)
            reason = f"the session could not be watched any more: {error!r}"
        self.end(str(reason))

    async def invoke(self, payload: bytes, content_type: str) -> Invocation:
        """Send a request to the app; raises a fault if the actor dies meanwhile or the app answers with an error."""
        location = self._rollouts.add(rollout_request(payload), self.id)
        answer = self._request("/invocations", payload, {"content-type": content_type, SESSION_HEADER: self.id})
        status, kind = await answer.__anext__()
        if status >= 300:
            self._rollouts.remove_refused(location)
            text = (await _read_start(answer)).decode(errors="replace")[:_LONGEST_TEXT]
            message = f"Received error ({status}) from runtime: {text}"
            raise RuntimeFault(message, code="RuntimeClientError", reason="agent")
        return Invocation(self.id, status, kind, answer)

    async def command(self, command: str, timeout: int) -> AsyncIterator[CommandEvent]:
        """Run a shell command beside the app."""
        body = json.dumps({"command": command, "timeout": timeout}).encode()
        answer = self._request(COMMAND_PATH, body, {"content-type": "application/json"})
        async with contextlib.aclosing(answer):
            await answer.__anext__()
            async for event in read_events(answer, timeout):
                yield event

    async def _request(self, path: str, body: bytes, headers: dict[str, str]) -> Any:
        """The app's answer: status and content type, then the chunks of its body."""
        import ray

        refs = self._actor.request.options(num_returns="streaming").remote("POST", path, headers, body)
        done = False
        try:
            async for ref in refs:
                part = await _result(ref)
                if part is None:  # the answer is incomplete
                    raise RuntimeFault(self._reason or "the app's answer broke off", code="RuntimeClientError")
                yield part
            done = True
        except ray.exceptions.RayActorError as error:
            done = True
            await asyncio.shield(self.end(_death_reason(error)))
            raise RuntimeFault(self._reason, code="RuntimeClientError") from None
        except ray.exceptions.RayError as error:
            raise RuntimeFault(f"the session could not be reached: {error}") from error
        finally:
            if not done:
                ray.cancel(refs)

    def end(self, reason: str) -> asyncio.Task[None]:
        """Stop the session; the task is done when the actor has ended and every rollout has a result."""
        if self._ending is None:
            self.stopping = True
            self._reason = reason
            self._ending = asyncio.get_running_loop().create_task(self._end())
        return self._ending

    async def _end(self) -> None:
        try:
            if not await self._shut_down():
                await self._rollouts.report_lost(self._reason, {**os.environ, **self._env})
        except Exception:
            logger.exception("session %s could not be ended cleanly", self.id)
        finally:
            self._on_ended()

    async def _shut_down(self) -> bool:
        """End the actor; returns whether its app had the time to store results for its rollouts."""
        import ray

        stored = False
        with contextlib.suppress(ray.exceptions.RayError, asyncio.TimeoutError):
            await asyncio.wait_for(_result(self._actor.shut_down.remote()), self._stop_grace)
            stored = True
        ray.kill(self._actor)
        with contextlib.suppress(ray.exceptions.RayError):
            await _result(self._actor.wait_for_place.remote())  # raises once the actor has ended
        return stored


async def _read_start(chunks: AsyncIterator[bytes]) -> bytes:
    """Enough of an answer for an error message."""
    data = b""
    async for chunk in chunks:
        data += chunk
        if len(data) >= 4 * _LONGEST_TEXT:
            break
    return data


async def _result(ref: Any) -> Any:
    return await ref


def _death_reason(error: Exception) -> str:
    """Why an actor died, without Ray's advice.

    >>> _death_reason(Exception("It died.\\nThe actor is dead because it fell. Some common causes include: …"))
    "the session's process ended: The actor is dead because it fell."
    """
    found = re.search(r"The actor is dead because .*?(?=\s*Some common causes|\n|$)", str(error))
    return f"the session's process ended: {found[0] if found else error}"
