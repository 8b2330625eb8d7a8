"""One session, as the runtime sees it: from the first invoke to the moment nothing of it is left.

Owns everything that belongs to the session outside of its sandbox: its socket, its control group, its ways out, its
log, and the rollouts it has accepted. `end` is the only way out, and takes all of it along. Whatever the session sends
is bounded here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ....errors import AgentCoreRLError, RuntimeFault
from ....store.session_store import STORE_PROXY_VARIABLE
from ...base import CommandEvent, Invocation
from ...hosting.agent_files import copy_agent_folder
from ...hosting.command_events import read_events
from ...hosting.pending_rollouts import AcceptedRollouts
from ...hosting.session_app import COMMAND_PATH, STAND_IN_AWS
from ..agent_templates import AgentSource, Template
from ..policy import parse_address
from ..sandbox.cgroup import Cgroup, CgroupTree
from ..sandbox.namespaces import SESSION_UID
from ..template.channel import Channel
from ..template.init_process import IMPORT_FAILED
from .app_connection import AppConnection
from .egress import ConnectionLimit, Egress
from .output_log import OutputLog
from .store_proxy import StoreProxy

logger = logging.getLogger(__name__)

_LOG_TAIL = 4000
_ANSWER_SECONDS = 30.0
_SOCKETS_AT_ONCE = 32
Address = tuple[str, int]


@dataclass
class Shared:
    """What all sessions of a runtime share."""

    state: Path
    protections: list[str]
    cgroups: CgroupTree
    store_proxy: StoreProxy
    endpoint_url: str = ""
    """Where the runtime itself is served."""
    token: str = ""
    """What it asks for there."""
    port: int = 0
    connections: ConnectionLimit = field(default_factory=ConnectionLimit)


class LocalSession:
    """A session: prepared, then assigned to a session id, then used until it ends."""

    def __init__(self, n: int, source: AgentSource, shared: Shared) -> None:
        self.n, self.source = n, source
        self.id = ""
        self.created_at = time.monotonic()
        self.stopping = False
        self.reason = ""
        """Why it ended."""
        self.lost = 0
        """Rollouts reported as lost."""
        self.ended = asyncio.Event()
        self.on_ended: Callable[[], object] = lambda: None
        self.app = AppConnection(shared.state / f"{n}.sock", self._why_it_ended)
        self._exited = asyncio.Event()
        self._import_failed = False
        self._shared = shared
        self._template: Template | None = None
        self._cgroup: Cgroup | None = None
        self._channel: Channel | None = None
        self._asking = asyncio.Lock()
        self._output: OutputLog | None = None
        self._egress: Egress | None = None
        self._reachable: set[Address] = set()
        self._store_url = ""
        self._rollouts = AcceptedRollouts()
        self._ending: asyncio.Task[None] | None = None

    @property
    def log(self) -> Path:
        """What the session printed; kept when it has ended."""
        return self._shared.state / "logs" / f"{self.n}.log"

    @property
    def protections(self) -> list[str]:
        """What this session ran with."""
        return list(self._shared.protections)

    @property
    def memory_bytes(self) -> int | None:
        """Memory in use, None if it isn't counted."""
        return self._cgroup.memory_bytes() if self._cgroup is not None else None

    def describe(self) -> dict[str, Any]:
        """For `ps`, and for whoever wants to know what a session ran with."""
        now = time.monotonic()
        memory = self.memory_bytes
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

    async def prepare(self, template: Template) -> None:
        """Have the template make a process in its sandbox, which imports the agent and waits to be assigned."""
        listen = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._channel, control = Channel.pair()
        self._output = OutputLog(self.log)
        joins: list[int] = []
        try:
            listen.bind(str(self._socket_path))
            listen.listen(512)
            if self._shared.cgroups.controllers:
                self._cgroup = self._shared.cgroups.create(f"s{self.n}", self.source.policy)
                joins = self._cgroup.open_procs()
            folder = await self._folder()
            descriptors = [listen.fileno(), self._output.write_end, control.fileno(), *joins]
            template.prepare(self.n, folder, descriptors, self._has_exited)
            self._template = template
        finally:
            listen.close()
            control.close()
            self._output.close_write_end()
            for descriptor in joins:
                os.close(descriptor)

    async def assign(self, session_id: str, payload: dict[str, Any]) -> None:
        """Make it this session's; returns when requests can be sent."""
        self.id = session_id
        self.created_at = time.monotonic()
        self._store_url = self._shared.store_proxy.admit(self._rollouts)
        self._egress = Egress(frozenset({self._shared.port}), self._shared.connections)
        self.app.open()
        await self._allow(self._addresses(payload), {"op": "assign", "env": self._environment(inside=True)})

    async def _allow(self, addresses: list[Address], message: dict[str, Any]) -> None:
        """Let the session reach further addresses, and tell its first process what else `message` says."""
        new = [address for address in addresses if address not in self._reachable]
        async with self._asking:
            for start in range(0, max(1, len(new)), _SOCKETS_AT_ONCE):
                some = new[start : start + _SOCKETS_AT_ONCE]
                answer, sockets = await self._ask(message | {"listen": some})
                message = {"op": "listen"}
                opened = [at for at, is_open in zip(some, answer.get("opened", ()), strict=False) if is_open]
                for descriptor, (host, port) in zip(sockets, opened, strict=False):
                    listening = socket.socket(fileno=descriptor)
                    listening.setblocking(False)
                    assert self._egress is not None
                    await self._egress.accept(listening, host, port)
                self._reachable.update(opened)
                if len(opened) < len(some) and "network" in self._shared.protections:
                    logger.warning("session %s can't be given %s", self.id, sorted(set(some) - set(opened)))

    async def _ask(self, message: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """Send its first process a message; gives the answer and its sockets, nothing if the session has ended."""
        if self._channel is None:
            return {}, []
        channel, readable = self._channel, asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            channel.send(message)
            if "network" not in self._shared.protections:
                return {}, []
            loop.add_reader(channel.fileno(), readable.set)  # also when the other end is closed
            try:
                await asyncio.wait_for(readable.wait(), _ANSWER_SECONDS)
            finally:
                loop.remove_reader(channel.fileno())
            answer, sockets = channel.receive()
        except (OSError, asyncio.TimeoutError):  # the request that follows will say why
            return {}, []
        return answer or {}, sockets

    def _addresses(self, payload: dict[str, Any]) -> list[Address]:
        """Where the session may connect to: its policy's addresses, the model's endpoint, where its results go."""
        wanted = [*self.source.policy.allow, f"127.0.0.1:{self._shared.store_proxy.port}"]
        wanted += [value for name, value in self.source.env.items() if name.startswith("AWS_ENDPOINT_URL")]
        settings = payload.get("_rollout")
        if isinstance(settings, dict):
            wanted += [settings[name] for name in ("base_url", "sqs_url") if "//" in str(settings.get(name))]
            wanted += self._aws_hosts(str(settings.get("s3_bucket")))
        found = []
        for address in wanted:
            with contextlib.suppress(AgentCoreRLError):  # the agent will say what is wrong with it
                found.append(parse_address(str(address)))
        return list(dict.fromkeys(found))

    def _aws_hosts(self, store: str) -> list[str]:
        """S3 itself, if the user gave the session credentials for it."""
        env = self.source.env
        if not self._has_credentials or "AWS_ENDPOINT_URL_S3" in env or store.startswith(("/", "file:")):
            return []
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        bucket = store.removeprefix("s3://").partition("/")[0]
        hosts = [f"s3.{region}.amazonaws.com", f"{bucket}.s3.{region}.amazonaws.com", f"sqs.{region}.amazonaws.com"]
        return [f"{host}:443" for host in [*hosts, f"{bucket}.s3.amazonaws.com"]]

    @property
    def _has_credentials(self) -> bool:
        return "AWS_ACCESS_KEY_ID" in self.source.env

    def _environment(self, *, inside: bool) -> dict[str, str]:
        """What the session gets beside the agent's variables; and, from `outside`, how its stores are reached."""
        env = dict(self.source.env) if not inside else {}
        if not self._has_credentials:  # the runtime's own S3 is all there is
            s3 = f"{self._store_url}/s3" if inside else self._shared.endpoint_url
            env |= STAND_IN_AWS | {"AWS_ENDPOINT_URL_S3": s3}
            env |= {} if inside else {"AWS_ACCESS_KEY_ID": self._shared.token}
        if not inside:
            return env
        env["TMPDIR"] = "/tmp"
        if "filesystem" in self._shared.protections:
            env[STORE_PROXY_VARIABLE] = self._store_url
        else:
            env["TMPDIR"] = env["HOME"] = str(self._private_folder / "tmp")
        return env

    async def _folder(self) -> str:
        """The session's working directory; a copy of the agent's folder where it can't have a view of its own."""
        if "filesystem" in self._shared.protections:
            return "/app"
        folder = self._private_folder / "app"
        (self._private_folder / "tmp").mkdir(parents=True)
        await asyncio.to_thread(copy_agent_folder, self.source.folder, str(folder))
        if os.geteuid() == 0 and "user" in self._shared.protections:
            await asyncio.to_thread(_give_away, self._private_folder)
        return str(folder)

    # --- use -------------------------------------------------------------------------------------------------------

    async def invoke(self, payload: bytes, parsed: dict[str, Any], headers: dict[str, str]) -> Invocation:
        """Send a request to the app; a fault if the session ends meanwhile, or if the app answers with an error."""
        accepted = self._rollouts.accept(parsed, self.id)
        if parsed:  # a later rollout of this session may have another endpoint
            await self._allow(self._addresses(parsed), {"op": "listen"})
        response = await self.app.post("/invocations", payload, headers)
        if response.status >= 300:
            self._rollouts.refused(accepted)
            text = (await self.app.read(response, _LOG_TAIL)).decode(errors="replace")
            said = f"Received error ({response.status}) from runtime: {text}"
            raise RuntimeFault(said, code="RuntimeClientError", reason="agent")
        kind = response.headers.get("Content-Type", "")
        return Invocation(self.id, response.status, kind, await self.app.body(response), response.headers)

    async def command(self, command: str, timeout: int) -> AsyncGenerator[CommandEvent, None]:
        """Run a shell command in the sandbox."""
        body = json.dumps({"command": command, "timeout": timeout}).encode()
        response = await self.app.post(COMMAND_PATH, body, {"Content-Type": "application/json"})
        try:
            if response.status != 200:
                raise RuntimeFault(f"the command could not be started ({response.status})", code="RuntimeClientError")
            async for event in read_events(response.content.iter_any(), timeout):
                yield event
        except aiohttp.ClientError as error:
            raise await self._why_it_ended() from error
        finally:
            self.app.done(response)

    async def _why_it_ended(self) -> RuntimeFault:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._exited.wait(), 2)
        tail = self.log_tail()
        return RuntimeFault(
            (self.reason or "the app closed the connection") + (f"\nlast output:\n{tail}" if tail else ""),
            code="RuntimeClientError",
            reason="agent" if self._import_failed else None,
        )

    def log_tail(self) -> str:
        """The end of what the session printed."""
        return self._output.tail(_LOG_TAIL) if self._output is not None else ""

    # --- end -------------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> asyncio.Task[None]:
        """Stop the session and remove everything of it; the task is done when nothing is left."""
        if self._ending is None:
            self.stopping = True
            self.reason = self.reason or reason
            self._ending = asyncio.get_running_loop().create_task(self._end())
        return self._ending

    async def _end(self) -> None:
        try:
            await self._end_process()
            self.lost = await self._rollouts.report_lost(self.reason, self._environment(inside=False))
        except Exception:
            logger.exception("session %s could not be ended as it should be", self.id)
        finally:
            await self._let_go()
            self.on_ended()
            self.ended.set()

    async def _end_process(self) -> None:
        if self.app.in_flight == 0:
            await self.app.close()  # an open connection would hold up the app's shutdown
        if self._template is None:
            return
        for number, seconds in ((15, self.source.policy.stop_grace), (9, 10.0)):
            if not self._exited.is_set():
                self._template.signal(self.n, number)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._exited.wait(), seconds)

    async def _let_go(self) -> None:
        """Release what belongs to the session, each whatever became of the others."""
        if self._cgroup is not None:
            await self._cgroup.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        await self.app.close()
        if self._egress is not None:
            await self._egress.close()
        self._shared.store_proxy.dismiss(self._store_url)
        if self._output is not None:
            self._output.close()
        with contextlib.suppress(OSError):
            self._socket_path.unlink()
        if "filesystem" not in self._shared.protections:
            await asyncio.to_thread(shutil.rmtree, self._private_folder, ignore_errors=True)

    def _has_exited(self, status: int) -> None:
        reason = f"the app's process ended ({_status_text(status)})"
        if status == IMPORT_FAILED:
            self._import_failed = True
            reason = f"agent {self.source.name} could not be imported"
        if self._cgroup is not None and self._cgroup.ran_out_of_memory():
            reason += f": it ran out of its {self.source.policy.memory_mb} MB of memory"
        self._exited.set()
        self.end(reason)

    @property
    def _socket_path(self) -> Path:
        return self._shared.state / f"{self.n}.sock"

    @property
    def _private_folder(self) -> Path:
        return self._shared.state / f"session-{self.n}"


def _give_away(folder: Path) -> None:
    for base, _, files in os.walk(folder):
        for path in [base, *(os.path.join(base, name) for name in files)]:
            os.chown(path, SESSION_UID, SESSION_UID, follow_symlinks=False)


def _status_text(status: int) -> str:
    if status < 0 or status > 128:
        return f"signal {-status if status < 0 else status - 128}"
    return f"exit code {status}"
