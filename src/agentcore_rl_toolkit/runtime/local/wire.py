"""AWS's wire in front of the local runtime: what `boto3.client("bedrock-agentcore", endpoint_url=…)` talks to.

    POST /runtimes/{arn}/invocations          InvokeAgentRuntime
    POST /runtimes/{arn}/stopruntimesession   StopRuntimeSession
    POST /runtimes/{arn}/commands             InvokeAgentRuntimeCommand
    GET  /metrics, /sessions, /logs/{session} for people and Prometheus
    anything else                             S3, over a folder (`s3.py`)

Signatures are accepted and not checked: it listens on loopback, for the user who started it.
"""

from __future__ import annotations

import errno
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from aiohttp import web

from ...errors import ConfigError, RuntimeFault
from ...eventstream import encode_event, encode_exception
from ..base import CommandEvent
from ..session_app import SESSION_HEADER
from .metrics import Metrics
from .s3 import LocalS3

if TYPE_CHECKING:
    from .runtime import LocalAgent, LocalRuntime

logger = logging.getLogger(__name__)

_LARGEST_BODY = 100_000_000
_PASSED_ON = ("accept", "traceparent", "tracestate", "baggage")
_PASSED_ON_PREFIXES = ("x-amzn-", "mcp-")
_ARN_PREFIX = "arn:aws:bedrock-agentcore:local:000000000000:runtime/"


class WireServer:
    """The runtime's HTTP server."""

    def __init__(self, runtime: LocalRuntime, s3: LocalS3) -> None:
        self._runtime = runtime
        self._s3 = s3
        self._metrics = Metrics()
        self._runner: web.AppRunner | None = None
        self.port = runtime.port

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=_LARGEST_BODY + 1)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/sessions", self._show_sessions)
        app.router.add_get("/logs/{session}", self._show_log)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._route)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
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
        if self._runner is not None:
            await self._runner.cleanup()

    async def _route(self, request: web.Request) -> web.StreamResponse:
        # boto3 percent-encodes the whole ARN, so the parts can only be told apart in the raw path.
        parts = request.raw_path.partition("?")[0].split("/")
        start = time.monotonic()
        if len(parts) < 2 or parts[1] != "runtimes":
            answer = await self._s3.handle(request)
            self._metrics.observe("s3", answer.status, time.monotonic() - start)
            return answer
        action = parts[3] if len(parts) == 4 else ""
        try:
            handler = {
                "invocations": self._invoke,
                "stopruntimesession": self._stop,
                "commands": self._command,
            }.get(action)
            if handler is None or request.method != "POST":
                raise RuntimeFault(f"{request.method} {request.path} is no operation", code="ResourceNotFoundException")
            agent = self._agent(unquote(parts[2]))
            response = await handler(request, agent)
        except RuntimeFault as fault:
            response = _fault(fault)
        except web.HTTPRequestEntityTooLarge:
            response = _fault(RuntimeFault(f"the body is over {_LARGEST_BODY:,} bytes", code="ValidationException"))
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            response = _fault(RuntimeFault(f"{type(error).__name__}: {error}"))
        known = action if action in ("invocations", "stopruntimesession", "commands") else "other"
        self._metrics.observe(known, response.status, time.monotonic() - start)
        return response

    def _agent(self, arn: str) -> LocalAgent:
        if not arn.startswith("arn:") or len(arn.split(":", 5)) != 6 or "runtime/" not in arn:
            raise RuntimeFault(f"{arn!r} is no runtime's ARN", code="ValidationException", hint=f"{_ARN_PREFIX}<name>")
        if not arn.startswith(_ARN_PREFIX):
            raise RuntimeFault(
                f"{arn} is not on this machine", code="ResourceNotFoundException", hint=f"{_ARN_PREFIX}…"
            )
        return self._runtime.agent(arn.removeprefix(_ARN_PREFIX))

    async def _invoke(self, request: web.Request, agent: LocalAgent) -> web.StreamResponse:
        session_id = request.headers.get(SESSION_HEADER) or str(uuid.uuid4())
        passed = {
            name: value
            for name, value in request.headers.items()
            if name.lower() in _PASSED_ON or name.lower().startswith(_PASSED_ON_PREFIXES)
        }
        kind = request.headers.get("Content-Type", "application/json")
        result = await agent.invoke(session_id, await request.read(), content_type=kind, headers=passed)
        response = web.StreamResponse(status=result.status, headers=_headers(session_id, result.content_type))
        return await _stream(request, response, result.body)

    async def _stop(self, request: web.Request, agent: LocalAgent) -> web.StreamResponse:
        session_id = _session_id(request)
        await agent.stop(session_id)
        return web.json_response({}, headers=_headers(session_id, None))

    async def _command(self, request: web.Request, agent: LocalAgent) -> web.StreamResponse:
        session_id = _session_id(request)
        try:
            body = json.loads(await request.read())
            command, timeout = body["command"], body.get("timeout", 300)
            if not isinstance(command, str) or type(timeout) is not int:
                raise TypeError("command must be a string and timeout a whole number")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RuntimeFault(f"the body is no command: {error!r}", code="ValidationException") from None
        events = agent.command(session_id, command, timeout=timeout)
        first = await anext(events)  # faults before the first event still have a status of their own
        headers = _headers(session_id, "application/vnd.amazon.eventstream")
        response = web.StreamResponse(status=200, headers=headers)

        async def frames() -> AsyncGenerator[bytes, None]:
            yield encode_event("chunk", b'{"contentStart":{}}')
            try:
                yield _frame(first)
                async for event in events:
                    yield _frame(event)
            except RuntimeFault as fault:
                yield encode_exception(_exception_name(fault), str(fault))

        return await _stream(request, response, frames())

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
        start = int(request.query.get("offset", "0"))
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(1 << 20)
        return web.Response(body=data, headers={"X-Next-Offset": str(start + len(data))})


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


def _frame(event: CommandEvent) -> bytes:
    if event.status is not None:
        content: dict[str, object] = {"contentStop": {"exitCode": event.exit_code, "status": event.status}}
    else:
        output = {name: text for name, text in (("stdout", event.stdout), ("stderr", event.stderr)) if text is not None}
        content = {"contentDelta": output}
    return encode_event("chunk", json.dumps(content).encode())


def _exception_name(fault: RuntimeFault) -> str:
    return fault.code[0].lower() + fault.code[1:]


def _session_id(request: web.Request) -> str:
    session_id = request.headers.get(SESSION_HEADER)
    if not session_id:
        raise RuntimeFault(f"the header {SESSION_HEADER} is missing", code="ValidationException")
    return session_id


def _headers(session_id: str, content_type: str | None) -> dict[str, str]:
    headers = {SESSION_HEADER: session_id, "x-amzn-RequestId": str(uuid.uuid4())}
    return headers | ({"Content-Type": content_type} if content_type else {})


def _fault(fault: RuntimeFault) -> web.Response:
    headers = {"x-amzn-ErrorType": fault.code, "x-amzn-RequestId": str(uuid.uuid4())}
    if fault.retry_after is not None:
        headers["Retry-After"] = f"{fault.retry_after:.3f}"
    return web.json_response({"message": str(fault), "__type": fault.code}, status=fault.status, headers=headers)
