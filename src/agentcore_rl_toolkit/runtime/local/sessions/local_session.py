"""One session, as the runtime sees it: from its preparation until nothing of it is left.

Owns everything of the session outside of its sandbox: its socket, control group, egress, log and pending rollouts.
`end` is the only way out and releases all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from multidict import CIMultiDict

from ....common.env_file import aws_region
from ....errors import AgentCoreRLError, BrokenAnswer, RuntimeFault
from ....store.session_store import STORE_PROXY_VARIABLE
from ...base import PLACEHOLDER_AWS, CommandEvent, Invocation
from ...hosting.agent_files import copy_agent_folder
from ...hosting.commands import COMMAND_PATH, read_events
from ...hosting.pending_rollouts import PendingRollouts
from ...hosting.request_checks import model_variables
from ..agent_source import AgentSource, parse_address
from ..sandbox.cgroup import Cgroup
from ..sandbox.namespaces import SESSION_UID
from ..sandbox.root_filesystem import chown_tree
from ..template.channel import Channel
from ..template.init_process import IMPORT_FAILED, LARGEST_ASSIGNMENT
from ..template.output_log import OutputLog
from ..template.template_keeper import Machine, TemplateHandle
from .app_connection import AppConnection
from .egress import ConnectionLimit, Egress
from .name_lookups import NameLookups
from .session_network import Address, SessionNetwork
from .store_proxy import StoreProxy

logger = logging.getLogger(__name__)

_LOG_TAIL = 4000
_PIPE, _F_SETPIPE_SZ = 4096, 1031


@dataclass
class SessionContext:
    """What all sessions of a runtime share."""

    machine: Machine
    store_proxy: StoreProxy
    token: str
    """The runtime's token."""
    endpoint_url: str = ""
    """The runtime's own address, known once it listens."""
    port: int = 0
    connections: ConnectionLimit = field(default_factory=ConnectionLimit)
    lookups: NameLookups = field(default_factory=NameLookups)


class LocalSession:
    """A session: prepared, then assigned to a session id, then used until it ends."""

    def __init__(self, n: int, source: AgentSource, context: SessionContext) -> None:
        self.n, self.source = n, source
        self.id = ""
        self.created_at = time.monotonic()
        self.stopping = False
        self.reason = ""
        """Why it ended."""
        self.lost = 0
        """How many rollouts it lost."""
        self.ended = asyncio.Event()
        self.on_ended: list[Callable[[], object]] = []
        self.protections = list(context.machine.protections)
        self.log = context.machine.state / "logs" / f"{n}.log"
        """The session's output; it stays when the session has ended."""
        self._socket_path = context.machine.state / f"{n}.sock"
        self._private_folder = context.machine.state / f"session-{n}"
        self.app = AppConnection(self._socket_path, self._end_fault)
        self._context = context
        self._exited = asyncio.Event()
        self._import_failed = False
        self._template: TemplateHandle | None = None
        self._cgroup: Cgroup | None = None
        self._channel: Channel | None = None
        self._assigned = -1
        """Descriptor that the app waits at for the session's variables."""
        self._network: SessionNetwork | None = None
        self._asking = asyncio.Lock()
        self._output: OutputLog | None = None
        self._egress = Egress(frozenset(), context.connections, context.lookups)
        self._reachable: set[Address] = set()
        self._store_url = ""
        self._rollouts = PendingRollouts()
        self._ending: asyncio.Task[None] | None = None

    def describe(self) -> dict[str, Any]:
        """For `runtime ps`."""
        now = time.monotonic()
        memory = self._cgroup.memory_bytes() if self._cgroup is not None else None
        return {
            "session_id": self.id,
            "agent": self.source.name,
            "state": "stopping" if self.stopping else "busy" if self.app.in_flight or self._rollouts else "idle",
            "seconds": round(now - self.created_at, 3),
            "idle_seconds": round(now - self.app.used_at, 3),
            "in_flight": self.app.in_flight,
            "rollouts": len(self._rollouts),
            "memory_mb": None if memory is None else round(memory / 1e6, 1),
            "protections": self.protections,
        }

    # --- start -----------------------------------------------------------------------------------------------------

    async def prepare(self, template: TemplateHandle) -> None:
        """Fork a process off the template; it enters its sandbox, imports the agent and waits to be assigned."""
        listen = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._channel, control = Channel.pair()
        if "network" in self.protections:
            self._network = SessionNetwork(self._channel)
        awaited, self._assigned = os.pipe2(os.O_CLOEXEC)
        self._output = OutputLog(self.log)
        joins: list[int] = []
        try:
            listen.bind(str(self._socket_path))
            listen.listen(512)
            if self._context.machine.cgroups.controllers:
                self._cgroup = self._context.machine.cgroups.create(f"s{self.n}", self.source.policy)
                joins = self._cgroup.open_procs()
            folder = "/app" if "filesystem" in self.protections else await asyncio.to_thread(self._make_folder)
            descriptors = [listen.fileno(), awaited, self._output.write_end, control.fileno(), *joins]
            template.prepare(self.n, folder, descriptors, self._process_exited)
            self._template = template
        finally:
            listen.close()
            control.close()
            self._output.close_write_end()
            for descriptor in (awaited, *joins):
                os.close(descriptor)

    def _make_folder(self) -> str:
        """A copy of the agent's folder, for sessions that share the host's file system."""
        (self._private_folder / "tmp").mkdir(parents=True)
        copy_agent_folder(self.source.folder, str(self._private_folder / "app"))
        if os.geteuid() == 0 and "user" in self.protections:
            chown_tree(str(self._private_folder), SESSION_UID, SESSION_UID)
        return str(self._private_folder / "app")

    async def assign(self, session_id: str, payload: dict[str, Any]) -> None:
        """Give the prepared session its id; returns when it takes requests."""
        self.id = session_id
        self.created_at = time.monotonic()
        self._store_url = self._context.store_proxy.admit(self._rollouts)
        self._egress = Egress(frozenset({self._context.port}), self._context.connections, self._context.lookups)
        self.app.used_at = time.monotonic()
        env = self._session_variables() | (model_variables(payload) if self._reads_model else {})
        await self._open_egress(self._addresses(payload))
        self._pass_variables(json.dumps(env).encode())

    @property
    def _reads_model(self) -> bool:
        """Whether the agent reads where its model is when it is imported."""
        return self._template is not None and bool(self._template.ready.result().get("reads_model"))

    def _pass_variables(self, variables: bytes) -> None:
        """Start the app, which waits for them. It reads them when it likes, so this never waits for it."""
        descriptor, self._assigned = self._assigned, -1
        if descriptor < 0:  # the session has ended
            return
        try:
            if len(variables) > _PIPE:
                fcntl.fcntl(descriptor, _F_SETPIPE_SZ, LARGEST_ASSIGNMENT)
            os.set_blocking(descriptor, False)
            os.write(descriptor, variables)
        except OSError as error:
            self.end(f"its variables could not be passed on: {error}")
        finally:
            os.close(descriptor)

    async def _open_egress(self, addresses: list[Address]) -> None:
        """Let the session reach those addresses that it doesn't reach yet."""
        async with self._asking:
            new = [address for address in addresses if address not in self._reachable]
            if self._network is None or not new:
                return
            opened = await self._network.listen(new)
            for (host, port), listening in opened.items():
                await self._egress.accept(listening, host, port)
            self._reachable.update(opened)
            if len(opened) < len(new):
                logger.warning("session %s can't reach %s", self.id, sorted(set(new) - set(opened)))

    def _addresses(self, payload: dict[str, Any]) -> list[Address]:
        """The addresses that the session may reach: its policy's, its model's, and those that take its results."""
        wanted = [*self.source.policy.allow, f"127.0.0.1:{self._context.store_proxy.port}"]
        wanted += [value for name, value in self.source.env.items() if name.startswith("AWS_ENDPOINT_URL")]
        settings = payload.get("_rollout")
        wanted += payload.get("endpoints", ()) if settings is None else ()
        if isinstance(settings, dict):
            wanted += [settings[name] for name in ("base_url", "sqs_url") if "//" in str(settings.get(name))]
            wanted += self._aws_hosts(str(settings.get("s3_bucket")))
        found = []
        for address in wanted:
            with contextlib.suppress(AgentCoreRLError):  # the agent's own error says what is wrong with it
                found.append(parse_address(str(address)))
        return list(dict.fromkeys(found))

    def _aws_hosts(self, store: str) -> list[str]:
        """S3 and SQS themselves, if the user gave the session credentials for them."""
        env = self.source.env
        if not self.source.has_credentials or "AWS_ENDPOINT_URL_S3" in env or store.startswith(("/", "file:")):
            return []
        region = aws_region(env) or "us-east-1"
        bucket = store.removeprefix("s3://").partition("/")[0]
        hosts = [f"s3.{region}.amazonaws.com", f"{bucket}.s3.{region}.amazonaws.com", f"sqs.{region}.amazonaws.com"]
        return [f"{host}:443" for host in [*hosts, f"{bucket}.s3.amazonaws.com"]]

    def _session_variables(self) -> dict[str, str]:
        """The variables that the session gets beside the agent's own."""
        env = {"TMPDIR": "/tmp"}
        if not self.source.has_credentials:
            env |= PLACEHOLDER_AWS | {"AWS_ENDPOINT_URL_S3": f"{self._store_url}/s3"}
        if "filesystem" in self.protections:
            return env | {STORE_PROXY_VARIABLE: self._store_url}
        return env | dict.fromkeys(("TMPDIR", "HOME"), str(self._private_folder / "tmp"))

    # --- use -------------------------------------------------------------------------------------------------------

    async def invoke(self, payload: bytes, parsed: dict[str, Any], headers: dict[str, str]) -> Invocation:
        """Send a request to the app; raises a fault if the session ends meanwhile or the app answers with an error."""
        location = self._rollouts.add(parsed, self.id)
        if parsed:  # a later rollout of this session may have another endpoint
            await self._open_egress(self._addresses(parsed))
        response = await self.app.post("/invocations", payload, headers)
        if response.status >= 300:
            self._rollouts.remove_refused(location)
            text = (await self.app.read(response, _LOG_TAIL)).decode(errors="replace")
            message = f"Received error ({response.status}) from runtime: {text}"
            raise RuntimeFault(message, code="RuntimeClientError", reason="agent")
        kind = response.headers.get("content-type", "")
        return Invocation(self.id, response.status, kind, await self.app.body(response), CIMultiDict(response.headers))

    async def command(self, command: str, timeout: int) -> AsyncGenerator[CommandEvent, None]:
        """Run a shell command in the sandbox."""
        body = json.dumps({"command": command, "timeout": timeout}).encode()
        response = await self.app.post(COMMAND_PATH, body, {"Content-Type": "application/json"})
        try:
            if response.status != 200:
                raise RuntimeFault(f"the command could not be started ({response.status})", code="RuntimeClientError")
            async for event in read_events(response.chunks(), timeout):
                yield event
        except BrokenAnswer as error:
            raise await self._end_fault() from error
        finally:
            self.app.done(response)

    def drain_output(self) -> None:
        """Move what the process has printed so far into the log."""
        if self._output is not None:
            self._output.drain()

    async def _end_fault(self) -> RuntimeFault:
        """The fault for a request that broke off: why the session ended, and its last output."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._exited.wait(), 2)
        tail = self._output.tail(_LOG_TAIL) if self._output is not None else ""
        return RuntimeFault(
            (self.reason or "the app closed the connection") + (f"\nlast output:\n{tail}" if tail else ""),
            code="RuntimeClientError",
            reason="agent" if self._import_failed else None,
        )

    # --- end -------------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> asyncio.Task[None]:
        """Stop the session and release everything of it; the task is done when nothing is left."""
        if self._ending is None:
            self.stopping = True
            self.reason = self.reason or reason
            self._ending = asyncio.get_running_loop().create_task(self._end())
        return self._ending

    async def _end(self) -> None:
        try:
            await self._end_process()
            environ = self.source.store_variables(self._context.endpoint_url, self._context.token)
            self.lost = await self._rollouts.report_lost(self.reason, environ)
        except Exception:
            logger.exception("session %s could not be ended cleanly", self.id)
        finally:
            await self._release()
            for callback in self.on_ended:
                callback()
            self.ended.set()

    async def _end_process(self) -> None:
        if self.app.in_flight == 0:
            self.app.close()  # an open connection would delay the app's shutdown
        if self._template is None:
            return
        for number, seconds in ((15, self.source.policy.stop_grace), (9, 10.0)):
            if not self._exited.is_set():
                self._template.signal(self.n, number)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._exited.wait(), seconds)

    async def _release(self) -> None:
        if self._cgroup is not None:
            await self._cgroup.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._assigned >= 0:
            os.close(self._assigned)
            self._assigned = -1
        self.app.close()
        if self._network is not None:
            self._network.close()
        await self._egress.close()
        self._context.store_proxy.dismiss(self._store_url)
        if self._output is not None:
            self._output.close()
        with contextlib.suppress(OSError):
            self._socket_path.unlink()
        if "filesystem" not in self.protections:
            await asyncio.to_thread(shutil.rmtree, self._private_folder, ignore_errors=True)

    def _process_exited(self, status: int) -> None:
        signaled = status < 0 or status > 128
        how = f"signal {-status if status < 0 else status - 128}" if signaled else f"exit code {status}"
        reason = f"the app's process ended ({how})"
        if status == IMPORT_FAILED:
            self._import_failed = True
            reason = f"agent {self.source.name} could not be imported"
        if status != 0 and self._cgroup is not None and self._cgroup.ran_out_of_memory():
            reason += f": it ran out of its {self.source.policy.memory_mb} MB of memory (--memory-mb sets more)"
        self._exited.set()
        self.end(reason)
