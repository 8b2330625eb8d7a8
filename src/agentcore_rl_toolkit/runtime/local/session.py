"""One session, as the runtime sees it: from the first invoke to the moment nothing of it is left.

Owns everything that belongs to the session outside of its sandbox: its socket, its control group, its doors, its log,
and the rollouts it has accepted. `end` is the only way out, and takes all of it along.
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
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from ...errors import AgentCoreRLError, RuntimeFault
from ...store.door import DOOR_VARIABLE
from ..accepted import AcceptedRollouts
from ..agent_code import copy_agent_folder
from ..base import CommandEvent, Invocation
from ..session_app import COMMAND_PATH, STAND_IN_AWS
from .agent import AgentSource, Template
from .cgroup import Cgroup, CgroupTree
from .channel import Channel
from .doors import Doors, ResultDoor
from .policy import parse_address
from .sandbox import SESSION_UID

logger = logging.getLogger(__name__)

_LARGEST_CHECKED = 1 << 20
_LOG_TAIL = 4000


@dataclass
class Shared:
    """What all sessions of a runtime share."""

    state: Path
    protections: list[str]
    cgroups: CgroupTree
    result_door: ResultDoor
    endpoint_url: str = ""
    """Where the runtime itself is served."""


class LocalSession:
    """A session: prepared, then assigned to a session id, then used until it ends."""

    def __init__(self, n: int, source: AgentSource, shared: Shared) -> None:
        self.n, self.source = n, source
        self.id = ""
        self.created_at = self.used_at = time.monotonic()
        self.in_flight = 0
        self.heard = False
        """Whether the app has ever answered."""
        self.stopping = False
        self.reason = ""
        """Why it ended."""
        self.lost = 0
        """Rollouts reported as lost."""
        self.ended = asyncio.Event()
        self.on_ended: Callable[[], object] = lambda: None
        self._exited = asyncio.Event()
        self._shared = shared
        self._template: Template | None = None
        self._cgroup: Cgroup | None = None
        self._channel: Channel | None = None
        self._doors = Doors()
        self._door_url = ""
        self._http: aiohttp.ClientSession | None = None
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
            "state": "stopping" if self.stopping else "busy" if self.in_flight or self._rollouts else "idle",
            "seconds": round(now - self.created_at, 3),
            "idle_seconds": round(now - self.used_at, 3),
            "in_flight": self.in_flight,
            "rollouts": len(self._rollouts),
            "memory_mb": None if memory is None else round(memory / 1e6, 1),
            "protections": self.protections,
        }

    # --- start -----------------------------------------------------------------------------------------------------

    async def prepare(self, template: Template) -> None:
        """Have the template make a process in its sandbox, which then waits to be assigned."""
        listen = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._channel, control = Channel.pair()
        log = -1
        joins: list[int] = []
        try:
            listen.bind(str(self._socket_path))
            listen.listen(512)
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if self._shared.cgroups.controllers:
                self._cgroup = self._shared.cgroups.create(f"s{self.n}", self.source.policy)
                joins = self._cgroup.open_procs()
            folder = await self._folder()
            template.prepare(self.n, folder, [listen.fileno(), log, control.fileno(), *joins], self._has_exited)
            self._template = template
        finally:
            listen.close()
            control.close()
            for descriptor in [log, *joins]:
                if descriptor >= 0:
                    os.close(descriptor)

    async def assign(self, session_id: str, payload: dict[str, Any]) -> None:
        """Make it this session's; returns when requests can be sent."""
        self.id = session_id
        self.created_at = self.used_at = time.monotonic()
        addresses = self._addresses(payload)
        self._door_url = self._shared.result_door.admit(session_id, self._rollouts.may_use, self._rollouts.was_stored)
        assert self._channel is not None
        with contextlib.suppress(OSError):  # it has ended already; the request will say so
            self._channel.send({"op": "assign", "doors": addresses, "env": self._environment(inside=True)})
        connector = aiohttp.UnixConnector(str(self._socket_path), limit=0)
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        if "network" in self._shared.protections:
            await self._accept_doors(self._channel, addresses)
        self._channel.close()
        self._channel = None

    def _addresses(self, payload: dict[str, Any]) -> list[tuple[str, int]]:
        """Where the session may connect to: its policy's addresses, the model's endpoint, where its results go."""
        wanted = [*self.source.policy.allow, f"127.0.0.1:{self._shared.result_door.port}"]
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
            s3 = f"{self._door_url}/s3" if inside else self._shared.endpoint_url
            env |= STAND_IN_AWS | {"AWS_ENDPOINT_URL_S3": s3}
        if not inside:
            return env
        env["TMPDIR"] = "/tmp"
        if "filesystem" in self._shared.protections:
            env[DOOR_VARIABLE] = self._door_url
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

    async def _accept_doors(self, channel: Channel, addresses: list[tuple[str, int]]) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(channel.fileno(), readable.set)  # also when the other end is closed
        try:
            await readable.wait()
        finally:
            loop.remove_reader(channel.fileno())
        message, doors = channel.receive()
        if message is None:  # it ended before; the request that started it will say so
            return
        for door, (host, port) in zip(doors, addresses, strict=True):
            sock = socket.socket(fileno=door)
            sock.setblocking(False)
            await self._doors.accept(sock, host, port)

    # --- use -------------------------------------------------------------------------------------------------------

    async def invoke(self, payload: bytes, parsed: dict[str, Any], headers: dict[str, str]) -> Invocation:
        """Send a request to the app; a fault if the session ends meanwhile, or if the app answers with an error."""
        accepted = self._rollouts.accept(parsed, self.id)
        response = await self._request("/invocations", payload, headers)
        kind = response.headers.get("Content-Type", "")
        if response.status >= 300:
            self._rollouts.refused(accepted)
            text = (await self._read(response)).decode(errors="replace")[:_LOG_TAIL]
            raise RuntimeFault(f"Received error ({response.status}) from runtime: {text}", code="RuntimeClientError")
        if kind.startswith("application/json") and (response.content_length or _LARGEST_CHECKED) < _LARGEST_CHECKED:
            return Invocation(self.id, response.status, kind, _one(await self._checked_json(response)))
        return Invocation(self.id, response.status, kind, self._stream(response))

    async def command(self, command: str, timeout: int) -> AsyncIterator[CommandEvent]:
        """Run a shell command in the sandbox."""
        body = json.dumps({"command": command, "timeout": timeout}).encode()
        response = await self._request(COMMAND_PATH, body, {"Content-Type": "application/json"})
        async for line in response.content:
            yield CommandEvent(**json.loads(line))
        self._done(response)

    async def ping(self) -> str:
        """What the app says of itself, `Unhealthy` if it doesn't."""
        assert self._http is not None
        try:
            async with self._http.get("http://session/ping", timeout=aiohttp.ClientTimeout(total=10)) as response:
                self.heard = True
                return str((await response.json())["status"])
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
            return "Unhealthy"

    async def _request(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        assert self._http is not None
        self.in_flight += 1
        self.used_at = time.monotonic()
        try:
            response = await self._http.post("http://session" + path, data=body, headers=headers)
        except BaseException as error:
            self.in_flight -= 1
            if isinstance(error, aiohttp.ClientError):
                raise await self._why_it_ended() from error
            raise
        self.heard = True
        return response

    async def _stream(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except aiohttp.ClientError as error:
            raise await self._why_it_ended() from error
        finally:
            self._done(response)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        return b"".join([chunk async for chunk in self._stream(response)])

    async def _checked_json(self, response: aiohttp.ClientResponse) -> bytes:
        body = await self._read(response)
        try:
            json.loads(body)
        except ValueError as error:
            shown = body[:200].decode(errors="replace")
            raise RuntimeFault(
                f"the app's answer says it is JSON, but is not ({error}): {shown}", code="RuntimeClientError"
            ) from None
        return body

    def _done(self, response: aiohttp.ClientResponse) -> None:
        response.close() if not response.content.at_eof() else response.release()
        self.in_flight -= 1
        self.used_at = time.monotonic()

    async def _why_it_ended(self) -> RuntimeFault:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._exited.wait(), 2)
        tail = self.log_tail()
        return RuntimeFault(
            (self.reason or "the app closed the connection") + (f"\nlast output:\n{tail}" if tail else ""),
            code="RuntimeClientError",
        )

    def log_tail(self) -> str:
        """The end of what the session printed."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""

    # --- end -------------------------------------------------------------------------------------------------------

    def end(self, reason: str) -> asyncio.Task[None]:
        """Stop the session and remove everything of it; the task is done when nothing is left."""
        if self._ending is None:
            self.stopping = True
            self.reason = self.reason or reason
            self._ending = asyncio.get_running_loop().create_task(self._end())
        return self._ending

    async def _end(self) -> None:
        if self._http is not None and self.in_flight == 0:
            await self._http.close()  # an open connection would hold up the app's shutdown
        if self._template is not None and not self._exited.is_set():
            self._template.signal(self.n, 15)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._exited.wait(), self.source.policy.stop_grace)
            if not self._exited.is_set():
                self._template.signal(self.n, 9)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._exited.wait(), 10)
        if self._channel is not None:
            self._channel.close()
        if self._http is not None:
            await self._http.close()
        await self._doors.close()
        self._shared.result_door.dismiss(self._door_url)
        self._socket_path.unlink(missing_ok=True)
        if "filesystem" not in self._shared.protections:
            await asyncio.to_thread(shutil.rmtree, self._private_folder, ignore_errors=True)
        self.lost = await self._rollouts.report_lost(self.reason, self._environment(inside=False))
        if self._cgroup is not None:
            self._cgroup.kill()
            for _ in range(100):
                if self._cgroup.remove():
                    break
                await asyncio.sleep(0.02)
        self.on_ended()
        self.ended.set()

    def _has_exited(self, status: int) -> None:
        reason = f"the app's process ended ({_status_text(status)})"
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


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _give_away(folder: Path) -> None:
    for base, _, files in os.walk(folder):
        for path in [base, *(os.path.join(base, name) for name in files)]:
            os.chown(path, SESSION_UID, SESSION_UID, follow_symlinks=False)


def _status_text(status: int) -> str:
    if status < 0 or status > 128:
        return f"signal {-status if status < 0 else status - 128}"
    return f"exit code {status}"
