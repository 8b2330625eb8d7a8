"""A gateway that runs elsewhere, as a `RolloutGateway`: over HTTP, in batches, through restarts.

    with GatewayClient("https://gateway.example.com") as gateway:      # AGENTCORE_RL_ADMIN_KEY
        session = gateway.open_session(input_id="row-1")

Opens, folds and deletes that are asked for at the same time share requests. A gateway that is away is waited for; with
a log, it comes back with its sessions, and every request may be repeated: nothing is lost, opened or deleted twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import orjson

from ...common.http_guard import is_loopback, reachable_host
from ...engine.base import Engine, EngineLoad
from ...engine.channel.engine_service import EngineService
from ...engine.remote.server import ServerEngine
from ...engine.replicas import loads_of
from ...errors import ConfigError, GatewayFault
from ..base import ADMIN_KEY, METRIC, RolloutGateway
from ..record.trajectory import Trajectories
from ..render.capabilities import Abilities
from .call_batches import BatchedCall, CallBatches, Patience, unreachable
from .engine_link import keep_connected
from .frames import MOST_SESSIONS, BatchAnswer, FrameReader
from .gateway_answers import OpenedSession, ToldAbilities, ToldEngines, ToldHealth, read_answer

logger = logging.getLogger(__name__)

_LARGEST_ANSWER = 64 << 20
"""Bytes of an answer that has no frames."""
_SILENT_SECONDS, _SILENT = 60.0, "gateway_silent"
"""A request without a byte of its answer for this long is sent again."""


class GatewayClient(RolloutGateway):
    """Reaches a gateway by its address."""

    def __init__(
        self,
        url: str,
        *,
        admin_key: str | None = None,
        patience: float = 300.0,
        engine: Engine | None = None,
        images: bool = True,
        routes: bool = False,
        run: str = "",
    ) -> None:
        """With an `engine` of this process, a gateway that was started with `--engine trainer` samples from it.

        `patience` is how many seconds a gateway that is away is waited for, each time.

        Engines of processes with the same `run` may be connected to one gateway at the same time: they have the same
        weights.

        Without `images`, a gateway that shows images is refused: for trainers that can't train on them. With `routes`,
        so is one that records no expert routes.
        """
        super().__init__("gateway client")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is not a gateway's URL", hint="write it like https://gateway.example.com")
        key = admin_key or os.environ.get(ADMIN_KEY)
        if not key:
            raise ConfigError(f"the gateway at {url} needs its admin key", hint=f"set {ADMIN_KEY}")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self._engine, self._images, self._routes, self._run = engine, images, routes, run
        self._links: list[asyncio.Task[None]] = []
        self._patience = Patience(self._url, patience)
        self._http: aiohttp.ClientSession | None = None
        self._abilities: Abilities | None = None
        self._model: str | None = None
        self._opens = CallBatches(self._sender("open"), MOST_SESSIONS)
        self._folds = CallBatches(self._sender("fold"), MOST_SESSIONS)
        self._deletes = CallBatches(self._sender("delete"), MOST_SESSIONS)

    @property
    def url(self) -> str:
        return self._url

    @property
    def model(self) -> str | None:
        return self._model

    @property
    def abilities(self) -> Abilities:
        if self._abilities is None:
            raise RuntimeError("the gateway was not asked yet; use the client in a `with` block")
        return self._abilities

    def pause(self) -> None:
        self._loop.run(self.ask("POST", "/pause"))

    def drain(self) -> None:
        self._loop.run(self.ask("POST", "/drain", waits=True))

    def resume(self, weight_version: str | None = None) -> None:
        if weight_version is not None:
            self._loop.run(self.ask("PUT", "/weights", {"version": weight_version}))
        self._loop.run(self.ask("POST", "/resume"))

    def metrics(self) -> dict[str, int]:
        lines = self._loop.run(self.ask("GET", "/metrics")).decode().splitlines()
        pairs = (line.removeprefix(METRIC).rpartition(" ") for line in lines)
        return {name: int(value) for name, _, value in pairs}

    async def engine_loads_async(self) -> dict[str, EngineLoad]:
        return await self._loop.run_async(self._loads())

    # --- on the client's own loop ------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, waits: bool = False) -> bytes:
        """The answer to a request that may be repeated; `waits` puts no limit on the gateway's silence."""

        async def once() -> bytes:
            while True:
                try:
                    async with self._request(method, path, body) as answer:
                        return await _read(answer)
                except GatewayFault as fault:
                    if not (waits and fault.code == _SILENT):
                        raise

        return bytes(await self._patience.retry(once))

    async def _start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_SILENT_SECONDS)
        self._http = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        try:
            told = await self._ask_abilities()
        except GatewayFault as fault:
            hint = f"set {ADMIN_KEY} to the key that the gateway was started with" if fault.status == 401 else None
            raise ConfigError(f"the gateway at {self._url} can't be used: {fault.message}", hint=hint) from fault
        if told.images and not self._images:
            raise ConfigError(
                f"the gateway at {self._url} shows the model images, and this trainer trains on text",
                hint="start it with --no-images",
            )
        if self._routes and not told.routes:
            raise ConfigError(
                f"the gateway at {self._url} does not record expert routes", hint="start it with --routes"
            )
        self._abilities = told.abilities()
        if self._engine is not None:
            told = await self._offer(self._engine, told)
        elif read_answer(await self.ask("GET", "/health"), ToldHealth, self._url).status == "paused":
            logger.warning("the gateway at %s is paused: it holds model calls until POST /resume", self._url)
        self._model = next(iter(told.models), None)

    async def _ask_abilities(self) -> ToldAbilities:
        return read_answer(await self.ask("GET", "/abilities"), ToldAbilities, self._url)

    async def _offer(self, engine: Engine, told: ToldAbilities) -> ToldAbilities:
        """Connect the engine to every process of the gateway; gives what the gateway says then."""
        assert self._http is not None
        if not told.wants_engine:
            if isinstance(engine, ServerEngine):
                return told
            raise ConfigError(
                f"the policy is in this process, and the gateway at {self._url} samples from its own engine",
                hint="start it with --engine trainer",
            )
        await engine.start()
        service, urls = EngineService(engine, self._run), [self._seen(url) for url in told.workers] or [self._url]
        opened = [asyncio.Event() for _ in urls]
        for url, event in zip(urls, opened, strict=True):
            self._links.append(asyncio.ensure_future(keep_connected(self._http, url, service, event.set)))
        try:
            async with asyncio.timeout(self._patience.seconds):
                await asyncio.gather(*(event.wait() for event in opened))
                while not told.models:
                    await asyncio.sleep(0.02)
                    told = await self._ask_abilities()
        except TimeoutError:
            missing = [url for url, event in zip(urls, opened, strict=True) if not event.is_set()]
            hint = "give each run its own gateway: one whose engine is another run's refuses this one's"
            text = f"the engine can't be connected to {', '.join(missing) or self._url}"
            raise ConfigError(text, hint=hint) from None
        return told

    def _seen(self, url: str) -> str:
        """A worker's address as it is from here: a gateway on another machine may know only its own loopback."""
        ours, theirs = urlsplit(self._url), urlsplit(url)
        if not is_loopback(theirs.hostname or ""):
            return url
        return f"{ours.scheme}://{reachable_host(ours.hostname or '')}:{theirs.port}"

    async def _stop(self) -> None:
        for task in self._links:
            task.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)
        if self._links and self._engine is not None:
            await self._engine.close()
        if self._http is not None:
            await self._http.close()

    async def _loads(self) -> dict[str, EngineLoad]:
        """The loads of this process's engine if the gateway samples from it, else those that the gateway reports."""
        if self._links and self._engine is not None:
            return await loads_of(self._engine)
        return read_answer(await self.ask("GET", "/engines"), ToldEngines, self._url).loads()

    async def _open(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Under its own id, so that it can be repeated."""
        named = {"session_id": secrets.token_hex(12)} | settings
        try:
            item = orjson.Fragment(orjson.dumps(named))
        except TypeError as error:
            raise GatewayFault.invalid(f"the settings of a session must be JSON: {error}") from None
        answer = await self._patience.retry(lambda: self._opens.call(item, str(named["session_id"])))
        session: dict[str, Any] = answer.session
        try:
            msgspec.convert(session, OpenedSession)
        except msgspec.ValidationError as error:
            text = f"the gateway at {self._url} opened a session that can't be used: {error}"
            raise GatewayFault(text, status=502) from None
        return session

    async def _fold(self, session_id: str) -> Trajectories:
        answer = await self._patience.retry(lambda: self._folds.call(session_id, session_id))
        try:
            folded: Trajectories = answer.trajectories.trajectories()
        except (AttributeError, ValueError) as error:
            raise GatewayFault(
                f"the gateway at {self._url} sent rows that can't be read: {error}", status=502
            ) from None
        return folded

    async def _delete(self, session_id: str) -> None:
        await self._patience.retry(lambda: self._deletes.call(session_id, session_id), gone_is_done=True)

    def _sender(self, name: str) -> Any:
        async def send(calls: list[BatchedCall]) -> None:
            body = {"sessions" if name == "open" else "session_ids": [call.item for call in calls]}
            waiting = {call.session_id: call for call in calls}
            async with self._request("POST", f"/batch/{name}", body) as answer:
                reader = FrameReader()
                async for piece in answer.content.iter_any():
                    for said in reader.feed(piece):
                        _settle(waiting.pop(said.session_id, None), said)

        return send

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is a success; else a `GatewayFault`, `gateway_unreachable` if it did not arrive whole."""
        assert self._http is not None
        try:
            data = None if body is None else orjson.dumps(body)
            async with self._http.request(method, self._url + path, data=data, allow_redirects=False) as answer:
                if answer.status >= 300:
                    raise _read_fault(answer.status, await _read(answer), answer.headers.get("Retry-After", ""))
                yield answer
        except TimeoutError as error:
            raise unreachable("it is silent", self._url, code=_SILENT) from error
        except (aiohttp.ClientError, OSError, ValueError, msgspec.DecodeError) as error:
            raise unreachable(f"{type(error).__name__}: {error}", self._url) from error


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    whole = bytearray()
    async for piece in answer.content.iter_any():
        whole += piece
        if len(whole) > _LARGEST_ANSWER:
            raise ValueError(f"an answer of more than {_LARGEST_ANSWER} bytes")
    return bytes(whole)


def _read_fault(status: int, body: bytes, retry_after: str) -> GatewayFault:
    """The fault that an answer tells of; a proxy's may be any text."""
    code, text = "gateway_refused", body[:200].decode("utf-8", "replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        error = orjson.loads(body)["error"]
        code, text = str(error["code"]), str(error["message"])
    seconds = float(retry_after) if retry_after.isdigit() else None
    return GatewayFault(text or f"status {status}", status=status, code=code, retry_after=seconds)


def _settle(call: BatchedCall | None, said: BatchAnswer) -> None:
    """Give one caller its answer, or its fault."""
    if call is None or call.answer.done():
        return
    if said.fault is not None:
        call.answer.set_exception(said.fault.fault())
    else:
        call.answer.set_result(said)
