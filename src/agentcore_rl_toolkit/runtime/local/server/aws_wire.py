"""AWS's wire in front of the local runtime: what `boto3.client("bedrock-agentcore", endpoint_url=…)` talks to.

    POST /runtimes/{arn}/invocations          InvokeAgentRuntime
    POST /runtimes/{arn}/stopruntimesession   StopRuntimeSession
    POST /runtimes/{arn}/commands             InvokeAgentRuntimeCommand
    GET  /metrics, /sessions, /logs/{session} status pages
    anything else                             S3, over a folder (`local_s3.py`)

`access.py` decides who may use it, before anything else of a request is read.
"""

from __future__ import annotations

import errno
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiohttp import web

from ....common.eventstream import CONTENT_TYPE
from ....errors import ConfigError, RuntimeFault
from ...base import REASON_HEADER, SESSION_HEADER
from ..agent_source import ACCOUNT, ARN_PREFIX
from .access import UNREADABLE, http_logger
from .command_stream import stream_command
from .local_s3 import LocalS3, s3_error
from .status_pages import StatusPages

if TYPE_CHECKING:
    from ..agent import LocalAgent
    from ..supervisor.front import ShardedAgent
    from ..supervisor.supervisor import Supervisor

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_LARGEST_BODY = 100_000_000
_REQUESTS_KEPT = 1000
_PASSED_ON = ("accept", "traceparent", "tracestate", "baggage")
_PASSED_ON_PREFIXES = ("x-amzn-", "mcp-")
_TRACE = ("X-Amzn-Trace-Id", "traceparent", "tracestate", "baggage")
_RETURNED = (*_TRACE, "Mcp-Session-Id", "Mcp-Protocol-Version")
"""Headers of an answer: the app's, or else the request's."""
_LONGEST = {"content-type": 256, "accept": 256, "x-amzn-trace-id": 128, "traceparent": 128, "tracestate": 512}
_LONGEST_HEADER = 8192
_DEFAULT_ENDPOINT = "DEFAULT"
_AWS_ONLY = {
    "invocations/.well-known/agent-card.json": "GetAgentCard, which is for agents that speak A2A",
    "ws": "the WebSocket of an agent",
    "ws/shells": "InvokeAgentRuntimeCommandShell",
}
"""What AWS has under `/runtimes/{arn}/` and this runtime lacks."""


class WireServer:
    """The runtime's HTTP server."""

    def __init__(self, runtime: Supervisor, s3: LocalS3) -> None:
        self._runtime = runtime
        self._s3 = s3
        self._pages = StatusPages(runtime)
        self._done: dict[Hashable, None] = {}
        """Stops and commands that were done, by what identifies the caller's request; boto3 may send one again."""
        self._runner: web.AppRunner | None = None
        self.port = runtime.port
        self._operations = {"invocations": self._invoke, "stopruntimesession": self._stop, "commands": self._command}

    async def start(self) -> None:
        app = web.Application(client_max_size=_LARGEST_BODY + 1, middlewares=[self._check_access])
        self._pages.add_routes(app)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._route)
        # Bodies stay compressed: one may be broken, or a thousand times as large.
        settings: dict[str, Any] = {"access_log": None, "logger": http_logger(), "auto_decompress": False}
        self._runner = web.AppRunner(app, shutdown_timeout=2, **settings)
        await self._runner.setup()
        host, port = self._runtime.settings.host, self._runtime.port
        try:
            await web.TCPSite(self._runner, host, port, backlog=1024).start()
        except OSError as error:
            await self.close()
            if error.errno == errno.EADDRINUSE:
                hint = "another runtime may be running; choose another --port"
                raise ConfigError(f"port {port} is in use", hint=hint) from None
            raise
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening, and break off open requests."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self._runtime.access.refusal(request.headers, request.query, request.transport)
        if refusal is None:
            return await handler(request)
        self._pages.count_request("refused", 403, 0)
        fault = RuntimeFault(refusal.message, code="AccessDeniedException", hint=refusal.hint)
        is_s3 = request.path.lstrip("/").partition("/")[0] not in ("runtimes", "metrics", "sessions", "logs")
        return s3_error(403, "AccessDenied", fault) if is_s3 else _error_response(fault)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        # boto3 percent-encodes the whole ARN, so only the raw path separates its parts.
        parts = request.raw_path.partition("?")[0].split("/")
        start = time.monotonic()
        if len(parts) < 2 or parts[1] != "runtimes":
            answer = await self._s3.handle(request)
            self._pages.count_request("s3", answer.status, time.monotonic() - start)
            return answer
        action = "/".join(parts[3:])
        try:
            operation = self._operations.get(action)
            if operation is None or request.method != "POST":
                raise _unknown_operation(request, action)
            _check_encoding(request)
            agent = self._runtime.agent(agent_name(unquote(parts[2]), request.query))
            response = await operation(request, agent)
        except RuntimeFault as fault:
            response = _error_response(fault)
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            response = _error_response(RuntimeFault(f"{type(error).__name__}: {error}"))
        counted = action if action in self._operations else "other"
        self._pages.count_request(counted, response.status, time.monotonic() - start)
        return response

    async def _invoke(self, request: web.Request, agent: LocalAgent | ShardedAgent) -> web.StreamResponse:
        session_id = request.headers.get(SESSION_HEADER) or str(uuid.uuid4())
        passed = {
            name: _checked_header(name, value)
            for name, value in request.headers.items()
            if name.lower() in _PASSED_ON or name.lower().startswith(_PASSED_ON_PREFIXES)
        }
        kind = _checked_header("Content-Type", request.headers.get("Content-Type", "application/json"))
        stores, body = self._runtime.settings.stores, await _read_body(request)
        result = await agent.invoke(session_id, body, content_type=kind, headers=passed, stores=stores)
        headers = _headers(session_id, result.content_type) | _returned(_RETURNED, result.headers, request.headers)
        return await _stream(request, web.StreamResponse(status=result.status, headers=headers), result.body)

    async def _stop(self, request: web.Request, agent: LocalAgent | ShardedAgent) -> web.StreamResponse:
        session_id = _session_id(request)
        token = _parse_object(await _read_body(request) or b"{}").get("clientToken", "")
        if not isinstance(token, str):
            raise RuntimeFault("clientToken must be a string", code="ValidationException")
        key = ("stop", agent.arn, session_id, token)
        if not token or key not in self._done:
            await agent.stop(session_id)
            self._remember(key)
        return web.json_response({}, headers=_headers(session_id, None))

    async def _command(self, request: web.Request, agent: LocalAgent | ShardedAgent) -> web.StreamResponse:
        session_id = _session_id(request)
        body = _parse_object(await _read_body(request))
        command, timeout = body.get("command"), body.get("timeout", 300)
        if not isinstance(command, str) or type(timeout) is not int:
            raise RuntimeFault("command must be a string and timeout a whole number", code="ValidationException")
        key = ("command", agent.arn, session_id, request.headers.get("amz-sdk-invocation-id"))
        if key in self._done:
            hint = "run it again in a new request if it may run twice"
            raise RuntimeFault("this request has started its command already", code="ConflictException", hint=hint)
        events = await agent.new_command(session_id, command, timeout)
        if key[-1]:
            self._remember(key)
        headers = _headers(session_id, CONTENT_TYPE) | _returned(_TRACE, {}, request.headers)
        response = web.StreamResponse(status=200, headers=headers)
        return await _stream(request, response, stream_command(events, lambda: request.transport is None))

    def _remember(self, key: Hashable) -> None:
        self._done[key] = None
        if len(self._done) > _REQUESTS_KEPT:
            del self._done[next(iter(self._done))]


def agent_name(identifier: str, query: Mapping[str, str]) -> str:
    """The agent that a path's `{agentRuntimeArn}` and the query mean: by its ARN, its endpoint's, or name and account.

    >>> agent_name(f"{ARN_PREFIX}math/runtime-endpoint/DEFAULT", {})
    'math'
    >>> agent_name("math", {"accountId": "000000000000"})
    'math'
    >>> agent_name(f"{ARN_PREFIX}math", {"qualifier": "prod"})
    Traceback (most recent call last):
        ...
    agentcore_rl_toolkit.errors.RuntimeFault: agent 'math' has no endpoint 'prod'
    hint: the local runtime has one for each agent, DEFAULT
    """
    is_arn, account = identifier.startswith("arn:"), query.get("accountId")
    if not identifier.startswith(ARN_PREFIX) and (is_arn or account != ACCOUNT):
        hint = f"expected {ARN_PREFIX}<name>, or <name> with ?accountId={ACCOUNT}"
        if not identifier or (is_arn and "runtime/" not in identifier) or not (is_arn or account):
            raise RuntimeFault(f"{identifier!r} is not a runtime's ARN", code="ValidationException", hint=hint)
        raise RuntimeFault(f"{identifier} is not on this machine", code="ResourceNotFoundException", hint=hint)
    name, _, endpoint = identifier.removeprefix(ARN_PREFIX).partition("/runtime-endpoint/")
    for qualifier in (endpoint or _DEFAULT_ENDPOINT, query.get("qualifier", _DEFAULT_ENDPOINT)):
        if qualifier != _DEFAULT_ENDPOINT:
            raise RuntimeFault(
                f"agent {name!r} has no endpoint {qualifier!r}",
                code="ResourceNotFoundException",
                hint=f"the local runtime has one for each agent, {_DEFAULT_ENDPOINT}",
            )
    return name


def _check_encoding(request: web.Request) -> None:
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        message = f"Content-Encoding: {encoding[:40]} is not supported"
        raise RuntimeFault(message, code="ValidationException", hint="send the body uncompressed")


async def _read_body(request: web.Request) -> bytes:
    try:
        if (request.content_length or 0) <= _LARGEST_BODY:
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        pass
    except UNREADABLE as error:
        raise RuntimeFault(f"the body can't be read: {error}", code="ValidationException") from None
    raise RuntimeFault(f"the body is over {_LARGEST_BODY:,} bytes", code="ValidationException")


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RuntimeFault(f"the body is not JSON: {error}", code="ValidationException") from None
    if not isinstance(value, dict):
        raise RuntimeFault("the body is not a JSON object", code="ValidationException")
    return value


async def _stream(request: web.Request, response: web.StreamResponse, body: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send chunks as they come. If they break off, abort the connection: half an answer must not look whole."""
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


def _checked_header(name: str, value: str) -> str:
    """A header's value, if AWS would accept it and the app can receive it."""
    most = _LONGEST.get(name.lower(), _LONGEST_HEADER)
    if len(value) > most:
        raise RuntimeFault(f"the header {name} has over {most} characters", code="ValidationException")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RuntimeFault(f"the header {name} is not UTF-8", code="ValidationException") from None
    return value


def _returned(names: Sequence[str], answered: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Those headers of an answer that are the app's, or else the request's. The app's may hold anything."""
    found = {name: answered.get(name) or asked.get(name, "") for name in names}
    return {name: value for name, value in found.items() if value and value.isascii() and value.isprintable()}


def _unknown_operation(request: web.Request, action: str) -> RuntimeFault:
    message, hint = f"{request.method} {request.path} is not an operation", None
    if action in _AWS_ONLY:
        message = f"the local runtime doesn't have {_AWS_ONLY[action]}"
        hint = "the guide to the local runtime lists what it has"
    return RuntimeFault(message, code="ResourceNotFoundException", hint=hint)


def _headers(session_id: str, content_type: str | None) -> dict[str, str]:
    headers = {SESSION_HEADER: session_id, "x-amzn-RequestId": str(uuid.uuid4())}
    return headers | ({"Content-Type": content_type} if content_type else {})


def _error_response(fault: RuntimeFault) -> web.Response:
    headers = {"x-amzn-ErrorType": fault.code, "x-amzn-RequestId": str(uuid.uuid4())}
    if fault.reason is not None:
        headers[REASON_HEADER] = fault.reason
    if fault.retry_after is not None:
        headers["Retry-After"] = f"{fault.retry_after:.3f}"
    return web.json_response({"message": str(fault), "__type": fault.code}, status=fault.status, headers=headers)
