"""The gateway's HTTP: the control API under the admin key, and what agents call under their session's own URL.

    POST   /sessions                                   open one                                            admin
    GET    /sessions/{id}[/turns|/trajectories]        read it                                             admin
    PUT    /sessions/{id}/result                       attach a result        admin, or the session's key
    POST   /sessions/{id}/close, DELETE /sessions/{id}                                                     admin
    POST   /pause, /resume, /drain, PUT /weights       around a weight update                              admin
    GET    /metrics                                    counters   admin, or the gateway's user on this machine
    GET    /health, /openapi.json
    *      /sessions/{id}.{key}/v1/…                   what the agent's client calls          the session's key

Requests of web pages are refused before they come here (`serve.py`).
Anything that is not an agent's call is rare; an agent's call is on the fast path: one task, no middleware.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import msgspec
from aiohttp import web
from xxhash import xxh3_128

from ...common.socket_owner import is_own_process
from ...errors import EngineError, GatewayFault
from ..call.choice import engine_fault
from ..call.core import Core
from ..record.session import Session, read_settings
from ..record.trajectory import Trajectories
from ..wire.base import Asked, Wire
from ..wire.json_body import dump, read_json
from ..wire.routes import route, wire_at, wire_near
from .exports import row_fields, send_list, turn_fields, wants_packed
from .http_server import Handler, read_body
from .model_queries import COUNTED, Inquiries
from .openapi import openapi
from .stream_sender import Sender

logger = logging.getLogger(__name__)

_JSON = "application/json"
_KEEP_ALIVE_SECONDS = 10.0
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
        keep_alive_seconds: float = _KEEP_ALIVE_SECONDS,
    ) -> None:
        """`url` says where the gateway is reached, for the URLs given to agents.

        With `trusts_own_user`, processes of this process's user read the counters without a key.
        """
        self.core = core
        self._trusts_own_user = trusts_own_user
        self._admin = admin_key.encode()
        self._url = url
        self.keep_alive_seconds = keep_alive_seconds
        self._inquiries = Inquiries(core)
        self._plain: dict[tuple[str, str], Handler] = {
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/openapi.json"): self._openapi,
        }
        self._control: dict[tuple[str, str], Handler] = {
            ("POST", "/sessions"): self._open,
            ("POST", "/pause"): self._pause,
            ("POST", "/resume"): self._resume,
            ("POST", "/drain"): self._drain,
            ("PUT", "/weights"): self._weights,
        }
        self._of_session: dict[tuple[str, str], Callable[[web.BaseRequest, Session], Awaitable[web.StreamResponse]]] = {
            ("GET", ""): self._describe,
            ("DELETE", ""): self._delete,
            ("POST", "close"): self._close,
            ("GET", "turns"): self._turns,
            ("GET", "trajectories"): self._trajectories,
            ("PUT", "result"): self._result,
        }
        self._of_agent: dict[tuple[str, str], Callable[[web.BaseRequest, Session], Awaitable[web.StreamResponse]]] = {
            ("GET", "v1/models"): self._models,
            ("GET", "v1/models/{model}"): self._model,
            ("GET", "v1beta/models"): self._models,
            ("GET", "v1beta/models/{model}"): self._model,
            **{("POST", path): self._count for path in COUNTED},
            ("PUT", "result"): self._result,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Any request; every failure is an answer in the shape of the wire it came over."""
        try:
            return await self._route(request)
        except GatewayFault as fault:
            self.core.faults[fault.code] += 1
            return refusal(request, fault)
        except EngineError as error:
            self.core.faults["engine"] += 1
            return refusal(request, engine_fault(error))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except web.HTTPException as refused:  # aiohttp's own, e.g. a body that is too large
            return refusal(request, GatewayFault(refused.reason, status=refused.status, code="invalid_request"))
        except Exception as error:
            return refusal(request, self.failed(request, error))

    def failed(self, request: web.BaseRequest, error: Exception) -> GatewayFault:
        """What to say of an exception that nobody expected."""
        logger.error("a request failed: %s %s", request.method, _hidden(request.path), exc_info=error)
        self.core.faults["internal"] += 1
        return GatewayFault("the gateway failed on this request; its log says how", status=500, code="internal_error")

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        method, path = request.method, request.path
        if path.startswith("/sessions/"):
            name, rest = _of_session(request)
            session_id, dot, key = name.partition(".")
            if dot:
                return await self._route_agent(request, self.core.sessions.for_agent(session_id, key), rest)
            action = self._of_session.get((method, rest))
            if action is None:
                raise _no_route(method, _hidden(path), {m for m, p in self._of_session if p == rest})
            self.check_admin(request)
            return await action(request, self.core.sessions.get(session_id))
        at = (method, path.rstrip("/") or "/")
        if at in self._plain:
            return await self._plain[at](request)
        if at in self._control:
            self.check_admin(request)
            return await self._control[at](request)
        raise _no_route(method, path, {m for m, p in (*self._plain, *self._control) if p == at[1]})

    async def _route_agent(self, request: web.BaseRequest, session: Session, rest: str) -> web.StreamResponse:
        wire = wire_at(rest, request.rel_url.raw_query_string)
        if wire is not None and request.method == "POST":
            return await self._call(request, session, wire, rest)
        at = route(rest)
        action = self._of_agent.get((request.method, at))
        if action is None:
            allowed = {"POST"} if wire is not None else {m for m, p in self._of_agent if p == at}
            raise _no_route(request.method, _hidden(request.path), allowed)
        return await action(request, session)

    def check_admin(self, request: web.BaseRequest) -> None:
        """Raise a `GatewayFault` unless the request carries the admin key."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        key = given.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key, self._admin):
            raise GatewayFault(
                "this needs the gateway's admin key",
                status=401,
                code="invalid_admin_key",
                hint="Authorization: Bearer …",
            )

    # Agents

    async def _call(self, request: web.BaseRequest, session: Session, wire: Wire, rest: str) -> web.StreamResponse:
        """A model call, over any wire."""
        raw = await read_body(request)
        asked = Asked(read_json(raw), session, self.core.renderer.tokenizer.decode, rest)
        exchange, known = wire.read(asked), xxh3_128(raw)
        own = request.headers.get("Idempotency-Key", "")
        known.update(f"{rest} {own}".encode("utf-8", "surrogateescape"))
        digest, retried = known.digest(), bool(own) or _is_retry(request)
        if exchange.stream:
            return await Sender(self, request, session, exchange, wire.stream_type).run(digest, len(raw), retried)
        answer = await self.core.answer(session, exchange.call, digest, size=len(raw), retried=retried)
        response = _json(exchange.whole(answer))
        try:
            await response.prepare(request)
            await response.write_eof()
        except BaseException:
            self.core.undelivered(session, answer)
            raise
        self.core.delivered(session, answer)
        return response

    async def _models(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        return _json(await self._inquiries.models(session, _of_session(request)[1], request.headers))

    async def _model(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        return _json(await self._inquiries.model(session, _of_session(request)[1], request.headers))

    async def _count(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        path = _of_session(request)[1]
        return _json(await self._inquiries.count(session, route(path), path, await read_body(request)))

    # Control

    async def _open(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await read_body(request)
        session = self.core.sessions.open(read_settings(read_json(raw) if raw.strip() else {}))
        return _json(dump(self.urls(session)), status=201)

    def urls(self, session: Session) -> dict[str, Any]:
        base = f"{self._url()}/sessions/{session.id}.{session.key}"
        return {
            "session_id": session.id,
            "base_url": f"{base}/v1",
            "anthropic_base_url": base,
            "bedrock_endpoint_url": base,
            "google_base_url": base,
            "result_url": f"{base}/result",
            "model": session.settings.model or next(iter(self.core.info.models), None),
            "expires_at": time.time() + session.idle_until_expired,
        }

    async def _describe(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        settings = msgspec.to_builtins(session.settings)
        return _json(
            dump(
                self.urls(session)
                | settings
                | {
                    "created_at": session.created,
                    "closed": session.closed,
                    "turns": len(session.tree.turns),
                    "in_flight": session.in_flight,
                    "result": session.result,
                }
            )
        )

    async def _delete(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        self.core.sessions.delete(session.id)
        return _json(dump({"session_id": session.id, "deleted": True}))

    async def _close(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        self.core.sessions.end(session)
        return _json(dump({"session_id": session.id, "closed": True}))

    async def _turns(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        packed = wants_packed(request)
        about = {"damaged": True} if session.damaged else {}
        fields = (turn_fields(turn, packed) for turn in list(session.tree.turns))
        return await send_list(request, "turns", fields, about, packed)

    async def _trajectories(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        packed = wants_packed(request)
        folded: Trajectories = self.core.trajectories(session)
        about = {
            "session_id": session.id,
            "group_id": session.settings.group_id,
            "input_id": session.settings.input_id,
            "metadata": session.settings.metadata,
            "in_flight": session.in_flight,
            "result": session.result,
            "fidelity": msgspec.to_builtins(folded.fidelity),
        }
        return await send_list(request, "rows", (row_fields(row, packed) for row in folded.rows), about, packed)

    async def _result(self, request: web.BaseRequest, session: Session) -> web.StreamResponse:
        raw = await read_body(request)
        self.core.sessions.put_result(session, read_json(raw))
        return _json(dump({"session_id": session.id}))

    async def _pause(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.core.pause()
        return await self._health(request)

    async def _resume(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.core.resume()
        return await self._health(request)

    async def _drain(self, request: web.BaseRequest) -> web.StreamResponse:
        await self.core.drain()
        return await self._health(request)

    async def _weights(self, request: web.BaseRequest) -> web.StreamResponse:
        version = read_json(await read_body(request)).get("version")
        if not isinstance(version, (str, int)) or isinstance(version, bool):
            raise GatewayFault.invalid("version is neither a text nor a number", param="version")
        self.core.name_weights(str(version))
        return await self._health(request)

    async def _health(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json(dump(await self.core.health()))

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        if not (self._trusts_own_user and is_own_process(request.transport)):
            self.check_admin(request)
        core = self.core
        lines = [
            f"agentcore_rl_gateway_in_flight {core.in_flight}",
            f"agentcore_rl_gateway_sessions_open {len(core.sessions)}",
            f"agentcore_rl_gateway_sessions_total {core.sessions.opened}",
        ]
        lines += [f"agentcore_rl_gateway_{name}_total {value}" for name, value in sorted(core.totals.items())]
        lines += [
            f'agentcore_rl_gateway_faults_total{{code="{c}"}} {value}' for c, value in sorted(core.faults.items())
        ]
        if core.log is not None:
            lines.append(f"agentcore_rl_gateway_log_bytes {core.log.size}")
            lines.append(f"agentcore_rl_gateway_log_failures_total {core.log.failures}")
            lines.append(f"agentcore_rl_gateway_log_damaged {core.log.damaged}")
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _openapi(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json(dump(openapi()))


# Answers


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type=_JSON)


def refusal(request: web.BaseRequest, fault: GatewayFault) -> web.Response:
    """A fault, in the shape of the wire that the request came over."""
    name, rest = _of_session(request)
    said = wire_near(rest, request.headers if "." in name else {}).refuse(fault)
    response = _json(said.body, said.status)
    response.headers.update(said.headers)
    if fault.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, round(fault.retry_after)))
    if fault.allow:
        response.headers["Allow"] = ", ".join(sorted(fault.allow))
    return response


# Requests


def _of_session(request: web.BaseRequest) -> tuple[str, str]:
    """A path's session, with its key if there is one, and what follows, still percent-encoded."""
    raw = request.rel_url.raw_path
    if not raw.startswith("/sessions/"):
        return "", ""
    name, _, rest = raw[len("/sessions/") :].partition("/")
    return unquote(name), rest.rstrip("/")


def _is_retry(request: web.BaseRequest) -> bool:
    """Whether the client says that it has sent this before: the OpenAI and Anthropic SDKs count, boto3 too."""
    if request.headers.get("x-stainless-retry-count", "0") != "0":
        return True
    return _LATER_ATTEMPT.search(request.headers.get("amz-sdk-request", "")) is not None


def _no_route(method: str, path: str, allowed: set[str]) -> GatewayFault:
    if allowed:
        return GatewayFault(
            f"{path} takes {', '.join(sorted(allowed))}", status=405, code="method_not_allowed", allow=allowed
        )
    return GatewayFault(f"there is no {method} {path[:200]}", status=404, code="not_found")


def _hidden(path: str) -> str:
    """A path without the session's key."""
    head, found, tail = path.partition("/sessions/")
    if not found:
        return path
    name, slash, rest = tail.partition("/")
    return f"{head}/sessions/{name.partition('.')[0]}{slash}{rest}"
