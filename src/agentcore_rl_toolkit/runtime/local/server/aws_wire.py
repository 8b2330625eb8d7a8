"""AWS's wire in front of the local runtime: what `boto3.client("bedrock-agentcore", endpoint_url=…)` talks to.

    POST /runtimes/{arn}/invocations          InvokeAgentRuntime
    POST /runtimes/{arn}/stopruntimesession   StopRuntimeSession
    POST /runtimes/{arn}/commands             InvokeAgentRuntimeCommand
    GET  /metrics, /sessions, /logs/{session} for people and Prometheus
    anything else                             S3, over a folder (`s3.py`)

Who may ask is in `access.py`, and is looked at before anything else of a request.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import web

from ....common.eventstream import CONTENT_TYPE
from ....errors import ConfigError, RuntimeFault
from ...base import REASON_HEADER
from ...hosting.session_app import SESSION_HEADER
from .arns import agent_name
from .command_runs import CommandRuns
from .http_log import UNREADABLE, http_logger
from .local_s3 import LocalS3, access_denied
from .metrics import Metrics

if TYPE_CHECKING:
    from ..runtime import LocalAgent, LocalRuntime

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LARGEST_BODY = 100_000_000
_STOPS_KEPT = 1000
_PASSED_ON = ("accept", "traceparent", "tracestate", "baggage")
_PASSED_ON_PREFIXES = ("x-amzn-", "mcp-")
_TRACE = ("X-Amzn-Trace-Id", "traceparent", "tracestate", "baggage")
_RETURNED = (*_TRACE, "Mcp-Session-Id", "Mcp-Protocol-Version")
"""Headers that an answer has: those of the app, or else as they came."""
_LONGEST = {"content-type": 256, "accept": 256, "x-amzn-trace-id": 128, "traceparent": 128, "tracestate": 512}
_LONGEST_HEADER = 8192
_MISSING = {
    "invocations/.well-known/agent-card.json": "GetAgentCard, which is for agents that speak A2A,",
    "ws": "the WebSocket of an agent",
    "ws/shells": "InvokeAgentRuntimeCommandShell",
}
"""What AWS has under `/runtimes/{arn}/` and this runtime hasn't."""


class WireServer:
    """The runtime's HTTP server."""

    def __init__(self, runtime: LocalRuntime, s3: LocalS3) -> None:
        self._runtime = runtime
        self._s3 = s3
        self._metrics = Metrics()
        self._commands = CommandRuns()
        self._stopped: dict[tuple[str, str, str], None] = {}
        """Stops that were done, by agent, session and the caller's token."""
        self._runner: web.AppRunner | None = None
        self.port = runtime.port

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=_LARGEST_BODY + 1, middlewares=[self._only_who_may])
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/sessions", self._show_sessions)
        app.router.add_get("/logs/{session}", self._show_log)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._route)
        # A body that nobody reads must not be opened either: it may be broken, or a thousand times as large.
        settings: dict[str, Any] = {"access_log": None, "logger": http_logger(), "auto_decompress": False}
        self._runner = web.AppRunner(app, shutdown_timeout=2, **settings)
        await self._runner.setup()
        host, port = self._runtime.host, self._runtime.port
        try:
            await web.TCPSite(self._runner, host, port, backlog=1024).start()
        except OSError as error:
            await self._runner.cleanup()
            self._runner = None
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {port} is in use", hint="another runtime may be running; choose another --port"
                ) from None
            raise
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening, cutting off what is still open."""
        await self._commands.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _only_who_may(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self._runtime.access.refusal(request.headers, request.query, request.transport)
        if refusal is None:
            return await handler(request)
        self._metrics.observe("refused", 403, 0)
        fault = RuntimeFault(refusal.message, code="AccessDeniedException", hint=refusal.hint)
        is_ours = request.path.lstrip("/").partition("/")[0] in ("runtimes", "metrics", "sessions", "logs")
        return _fault(fault) if is_ours else access_denied(str(fault))

    async def _route(self, request: web.Request) -> web.StreamResponse:
        # boto3 percent-encodes the whole ARN, so the parts can only be told apart in the raw path.
        parts = request.raw_path.partition("?")[0].split("/")
        start = time.monotonic()
        if len(parts) < 2 or parts[1] != "runtimes":
            answer = await self._s3.handle(request)
            self._metrics.observe("s3", answer.status, time.monotonic() - start)
            return answer
        action = "/".join(parts[3:])
        try:
            handler = {
                "invocations": self._invoke,
                "stopruntimesession": self._stop,
                "commands": self._command,
            }.get(action)
            if handler is None or request.method != "POST":
                raise _no_operation(request, action)
            _check_encoding(request)
            agent = self._runtime.agent(agent_name(unquote(parts[2]), request.query))
            response = await handler(request, agent)
        except RuntimeFault as fault:
            response = _fault(fault)
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            response = _fault(RuntimeFault(f"{type(error).__name__}: {error}"))
        known = action if action in ("invocations", "stopruntimesession", "commands") else "other"
        self._metrics.observe(known, response.status, time.monotonic() - start)
        return response

    async def _invoke(self, request: web.Request, agent: LocalAgent) -> web.StreamResponse:
        session_id = request.headers.get(SESSION_HEADER) or str(uuid.uuid4())
        passed = {
            name: _sound(name, value)
            for name, value in request.headers.items()
            if name.lower() in _PASSED_ON or name.lower().startswith(_PASSED_ON_PREFIXES)
        }
        kind = _sound("Content-Type", request.headers.get("Content-Type", "application/json"))
        stores, body = self._runtime.stores, await _body(request)
        result = await agent.invoke(session_id, body, content_type=kind, headers=passed, stores=stores)
        headers = _headers(session_id, result.content_type) | _returned(_RETURNED, result.headers, request.headers)
        response = web.StreamResponse(status=result.status, headers=headers)
        return await _stream(request, response, result.body)

    async def _stop(self, request: web.Request, agent: LocalAgent) -> web.StreamResponse:
        session_id = _session_id(request)
        token = _json_object(await _body(request) or b"{}").get("clientToken", "")
        if not isinstance(token, str):
            raise RuntimeFault("clientToken must be a string", code="ValidationException")
        if not token or (agent.arn, session_id, token) not in self._stopped:  # boto3 may have sent it before
            await agent.stop(session_id)
            self._stopped[agent.arn, session_id, token] = None
            if len(self._stopped) > _STOPS_KEPT:
                del self._stopped[next(iter(self._stopped))]
        return web.json_response({}, headers=_headers(session_id, None))

    async def _command(self, request: web.Request, agent: LocalAgent) -> web.StreamResponse:
        session_id = _session_id(request)
        body = _json_object(await _body(request))
        command, timeout = body.get("command"), body.get("timeout", 300)
        if not isinstance(command, str) or type(timeout) is not int:
            raise RuntimeFault("command must be a string and timeout a whole number", code="ValidationException")
        invocation = request.headers.get("amz-sdk-invocation-id")
        key = (agent.arn, session_id, command, timeout, invocation) if invocation else None
        run = self._commands.run(key, lambda: agent.new_command(session_id, command, timeout))
        headers = _headers(session_id, CONTENT_TYPE) | _returned(_TRACE, {}, request.headers)
        response = web.StreamResponse(status=200, headers=headers)
        return await _stream(request, response, run.frames(lambda: request.transport is None))

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self._metrics.render(self._runtime), content_type="text/plain")

    async def _show_sessions(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "max_sessions": self._runtime.max_sessions,
                "counts": self._runtime.counts,
                "missing": self._runtime.missing,
                "sessions": [session.describe() for session in self._runtime.sessions],
            }
        )

    async def _show_log(self, request: web.Request) -> web.StreamResponse:
        path = self._runtime.log_of(request.match_info["session"])
        if path is None:
            return web.Response(status=404, text="there is no such session")
        offset = request.query.get("offset", "0")
        if not re.fullmatch("[0-9]{1,18}", offset):
            return _fault(RuntimeFault(f"offset {offset[:40]!r} is not a number", code="ValidationException"))
        start = int(offset)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(1 << 20)
        return web.Response(body=data, headers={"X-Next-Offset": str(start + len(data))})


def _check_encoding(request: web.Request) -> None:
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise RuntimeFault(
            f"Content-Encoding: {encoding[:40]} is not supported", code="ValidationException", hint="send it as it is"
        )


async def _body(request: web.Request) -> bytes:
    """All of a request's body, if it can be read and is not too large."""
    try:
        if (request.content_length or 0) <= _LARGEST_BODY:
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        pass
    except UNREADABLE as error:
        raise RuntimeFault(f"the body can't be read: {error}", code="ValidationException") from None
    raise RuntimeFault(f"the body is over {_LARGEST_BODY:,} bytes", code="ValidationException")


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RuntimeFault(f"the body is not JSON: {error}", code="ValidationException") from None
    if not isinstance(value, dict):
        raise RuntimeFault("the body is not a JSON object", code="ValidationException")
    return value


async def _stream(request: web.Request, response: web.StreamResponse, body: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send chunks as they come. When they break off, so does the response: half an answer must not look whole."""
    try:
        await response.prepare(request)
        async for chunk in body:
            await response.write(chunk)
        await response.write_eof()
    except (RuntimeFault, ConnectionError) as error:
        logger.warning("a response broke off: %s", error)
        if request.transport is not None:
            request.transport.abort()
    finally:
        if isinstance(body, AsyncGenerator):
            await body.aclose()
    return response


def _session_id(request: web.Request) -> str:
    session_id = request.headers.get(SESSION_HEADER)
    if not session_id:
        raise RuntimeFault(f"the header {SESSION_HEADER} is missing", code="ValidationException")
    return session_id


def _sound(name: str, value: str) -> str:
    """A header's value, if AWS would take it and the app can be sent it."""
    most = _LONGEST.get(name.lower(), _LONGEST_HEADER)
    if len(value) > most:
        raise RuntimeFault(f"the header {name} has over {most} characters", code="ValidationException")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RuntimeFault(f"the header {name} is not UTF-8", code="ValidationException") from None
    return value


def _returned(names: Sequence[str], said: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Those headers of an answer that are the app's, or as they came; what it says may be anything."""
    found = {name: said.get(name) or asked.get(name, "") for name in names}
    return {name: value for name, value in found.items() if value and value.isascii() and value.isprintable()}


def _no_operation(request: web.Request, action: str) -> RuntimeFault:
    if action not in _MISSING:
        return RuntimeFault(f"{request.method} {request.path} is no operation", code="ResourceNotFoundException")
    return RuntimeFault(
        f"the local runtime doesn't have {_MISSING[action]}".rstrip(","),
        code="ResourceNotFoundException",
        hint="what it has, and what only AWS has, is in the guide to the local runtime",
    )


def _headers(session_id: str, content_type: str | None) -> dict[str, str]:
    headers = {SESSION_HEADER: session_id, "x-amzn-RequestId": str(uuid.uuid4())}
    return headers | ({"Content-Type": content_type} if content_type else {})


def _fault(fault: RuntimeFault) -> web.Response:
    headers = {"x-amzn-ErrorType": fault.code, "x-amzn-RequestId": str(uuid.uuid4())}
    if fault.reason is not None:
        headers[REASON_HEADER] = fault.reason
    if fault.retry_after is not None:
        headers["Retry-After"] = f"{fault.retry_after:.3f}"
    return web.json_response({"message": str(fault), "__type": fault.code}, status=fault.status, headers=headers)
