"""The gateway's HTTP: the control API under the admin key, and the APIs that agents call under their session's URL.

`openapi.OPERATIONS` lists all operations. An agent's call is on the fast path: one task, no middleware. Requests from
web pages are refused before they reach the app (`gateway.py`).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from xxhash import xxh3_128

from ...common.socket_owner import is_own_process
from ...errors import EngineError, GatewayFault
from ..call.choice import engine_fault
from ..call.core import Core
from ..record.session import Session
from ..wire.base import Wire, WireRequest
from ..wire.json_body import read_json
from ..wire.routes import WIRES, error_wire, find_route, find_wire
from .control_operations import ControlOperations, SessionHandler, json_response
from .http_server import Handler, read_body
from .jobs.job_reports import JobReports
from .model_queries import ModelQueries
from .openapi import AGENT, OPERATIONS, SESSION
from .stream_sender import StreamSender

logger = logging.getLogger(__name__)

_PUBLIC = {operation.path for operation in OPERATIONS if not operation.needs_admin_key}
_LATER_ATTEMPT = re.compile(r"\battempt=(?!1\b)\d")


class App:
    """Routes requests to a `Core`."""

    def __init__(
        self,
        core: Core,
        *,
        admin_key: str,
        url: Callable[[], str],
        trusts_own_user: bool = False,
    ) -> None:
        """`url` returns the gateway's address, for the URLs given to agents.

        With `trusts_own_user`, processes of this process's user read the counters without a key.
        """
        self.core = core
        self._trusts_own_user = trusts_own_user
        self._admin_key = admin_key.encode()
        self._control = ControlOperations(core, url)
        self._queries = ModelQueries(core)
        self._reports = JobReports(core)
        plain = self._control.handlers()
        of_session: dict[str, SessionHandler] = {
            **self._control.session_handlers(),
            "completeRollout": self._reports.complete,
            "updateReward": self._reports.reward,
            "readReport": self._reports.read,
            **dict.fromkeys(("models", "googleModels"), self._list_models),
            **dict.fromkeys(("model", "googleModel"), self._describe_model),
            **dict.fromkeys(("countTokens", "googleCountTokens", "bedrockCountTokens"), self._count_tokens),
        }
        self._plain: dict[tuple[str, str], Handler] = {}
        self._of_session: dict[tuple[str, str], SessionHandler] = {}
        self._of_agent: dict[tuple[str, str], SessionHandler] = {}
        for operation in OPERATIONS:
            agent_path = operation.path.removeprefix(f"{AGENT}/")
            if agent_path in WIRES:
                continue
            if agent_path != operation.path:
                self._of_agent[operation.method, agent_path] = of_session[operation.name]
            elif operation.path.startswith(SESSION):
                path = operation.path.removeprefix(SESSION).removeprefix("/")
                self._of_session[operation.method, path] = of_session[operation.name]
            else:
                self._plain[operation.method, operation.path] = plain[operation.name]

    def urls(self, session: Session) -> dict[str, Any]:
        """What an agent needs to know of a session."""
        return self._control.urls(session)

    def batch(self, path: str, body: Any) -> AsyncIterator[bytes]:
        """The frames that answer a batch operation on sessions of this worker."""
        return self._control.batches.frames(path, body)

    def set_worker_urls(self, urls: Sequence[str]) -> None:
        """The addresses of all workers, if there are several."""
        self._control.worker_urls = urls

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve any request; a failure becomes an answer in the format of its wire."""
        try:
            return await self._route(request)
        except GatewayFault as fault:
            self.core.faults[fault.code] += 1
            return error_response(request, fault)
        except EngineError as error:
            self.core.faults["engine"] += 1
            return error_response(request, engine_fault(error))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except web.HTTPException as error:  # aiohttp's own
            return error_response(request, GatewayFault(error.reason, status=error.status, code="invalid_request"))
        except Exception as error:
            return error_response(request, self.failed(request, error))

    def failed(self, request: web.BaseRequest, error: Exception) -> GatewayFault:
        """Log an unexpected exception; returns the fault to answer with."""
        logger.error("a request failed: %s %s", request.method, _without_key(request.path), exc_info=error)
        self.core.faults["internal"] += 1
        return GatewayFault(
            "the gateway failed on this request; its log has the reason", status=500, code="internal_error"
        )

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        method, path = request.method, request.path
        if path.startswith("/sessions/"):
            name, rest = split_path(request)
            session_id, dot, key = name.partition(".")
            if dot:
                return await self._route_agent(request, self.core.sessions.for_agent(session_id, key), rest)
            action = self._of_session.get((method, rest))
            if action is None:
                raise no_route(method, _without_key(path), {m for m, p in self._of_session if p == rest})
            self.check_admin(request)
            return await action(request, self.core.sessions.get(session_id))
        path = path.rstrip("/") or "/"
        handler = self._plain.get((method, path))
        if handler is None:
            raise no_route(method, request.path, {m for m, p in self._plain if p == path})
        if path not in _PUBLIC and not (path == "/metrics" and self._is_trusted(request)):
            self.check_admin(request)
        return await handler(request)

    def _is_trusted(self, request: web.BaseRequest) -> bool:
        return self._trusts_own_user and is_own_process(request.transport)

    async def _route_agent(self, request: web.BaseRequest, session: Session, path: str) -> web.StreamResponse:
        wire = find_wire(path, request.rel_url.raw_query_string)
        if wire is not None and request.method == "POST":
            return await self._call(request, session, wire, path)
        route = find_route(path)
        action = self._of_agent.get((request.method, route))
        if action is None:
            allowed = {"POST"} if wire is not None else {m for m, p in self._of_agent if p == route}
            raise no_route(request.method, _without_key(request.path), allowed)
        return await action(request, session)

    def check_admin(self, request: web.BaseRequest) -> None:
        """Raise a `GatewayFault` unless the request carries the admin key."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        key = given.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key, self._admin_key):
            raise GatewayFault(
                "this operation needs the gateway's admin key",
                status=401,
                code="invalid_admin_key",
                hint="send Authorization: Bearer <admin key>",
            )

    # Agents

    async def _call(self, request: web.BaseRequest, session: Session, wire: Wire, path: str) -> web.StreamResponse:
        """Serve a model call, over any wire."""
        if session.result is not None:
            self._reports.check_open(session)
        raw = await read_body(request)
        exchange = wire.read(WireRequest(read_json(raw), session, self.core.renderer.tokenizer.decode, path))
        own_key = request.headers.get("Idempotency-Key", "")
        hashed = xxh3_128(raw)
        hashed.update(f"{path} {own_key}".encode("utf-8", "surrogateescape"))
        fingerprint, retried = hashed.digest(), bool(own_key) or _is_retry(request)
        if exchange.stream:
            sender = StreamSender(self, request, session, exchange, wire.stream_type)
            return await sender.run(fingerprint, len(raw), retried)
        answer = await self.core.answer(session, exchange.call, fingerprint, size=len(raw), retried=retried)
        response = json_response(exchange.whole(answer))
        try:
            await response.prepare(request)
            await response.write_eof()
        except BaseException:
            self.core.recorder.mark_undelivered(session, answer)
            raise
        self.core.recorder.mark_delivered(session, answer)
        return response

    async def _list_models(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        return json_response(await self._queries.list_models(session, split_path(request)[1], request.headers))

    async def _describe_model(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        return json_response(await self._queries.describe_model(session, split_path(request)[1], request.headers))

    async def _count_tokens(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        path = split_path(request)[1]
        return json_response(
            await self._queries.count_tokens(session, find_route(path), path, await read_body(request))
        )


# Answers


def error_response(request: web.BaseRequest, fault: GatewayFault) -> web.Response:
    """A fault, in the format of the wire that the request came over."""
    name, rest = split_path(request)
    reply = error_wire(rest, request.headers if "." in name or not name else {}).refuse(fault)
    response = json_response(reply.body, reply.status)
    response.headers.update(reply.headers)
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(fault.retry_after)))
    if fault.allow:
        response.headers["Allow"] = ", ".join(sorted(fault.allow))
    return response


# Requests


def split_path(request: web.BaseRequest) -> tuple[str, str]:
    """A path's session, with its key if it has one, and the rest, still percent-encoded."""
    raw = request.rel_url.raw_path
    if not raw.startswith("/sessions/"):
        return "", raw.strip("/")
    name, _, rest = raw[len("/sessions/") :].partition("/")
    return unquote(name), rest.rstrip("/")


def _is_retry(request: web.BaseRequest) -> bool:
    """Whether a header says that the client has sent this before, as the SDKs of OpenAI, Anthropic and AWS do."""
    if request.headers.get("x-stainless-retry-count", "0") != "0":
        return True
    return _LATER_ATTEMPT.search(request.headers.get("amz-sdk-request", "")) is not None


def no_route(method: str, path: str, allowed: set[str]) -> GatewayFault:
    """The fault of a request that no operation serves; `allowed` are the methods that the path does serve."""
    if allowed:
        return GatewayFault(
            f"{path} accepts only {', '.join(sorted(allowed))}", status=405, code="method_not_allowed", allow=allowed
        )
    return GatewayFault(f"{method} {path[:200]} does not exist", status=404, code="not_found")


def _without_key(path: str) -> str:
    """A path without the session's key."""
    head, found, tail = path.partition("/sessions/")
    if not found:
        return path
    name, slash, rest = tail.partition("/")
    return f"{head}/sessions/{name.partition('.')[0]}{slash}{rest}"
