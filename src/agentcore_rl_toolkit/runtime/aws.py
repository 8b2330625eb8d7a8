"""The runtime on AWS, through boto3: Amazon Bedrock AgentCore Runtime, or anything that speaks its wire.

boto3 is imported on the first call. It blocks, so every call and every read of a stream runs on a private thread. This
runtime keeps no record of sessions and leaves pacing to the client. boto3's retries may deliver a request twice: an app
must treat a repeated invoke of a session as the same one, and a command may run twice on AWS if its connection breaks
before the answer starts.

A caller that paces requests itself asks for a single attempt, which turns boto3's adaptive mode off: it would slow down
every request after a throttle, including the stops that free a full runtime's sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .. import __version__
from ..errors import ConfigError, RuntimeFault
from .base import REASON_HEADER, TOKEN_VARIABLE, CommandEvent, Invocation, one_piece

T = TypeVar("T")

_ARN = re.compile(r"arn:[\w-]+:bedrock-agentcore:(?P<region>[\w-]+):\w*:runtime/[\w./-]+")
_CHUNK = 65536
_SHORT = 4096
"""Bytes of a JSON answer that is read together with its headers."""
_COMMAND_GRACE = 30
"""Seconds after its time limit in which the service ends a silent command."""


class AgentCoreRuntime:
    """One agent's runtime behind the `bedrock-agentcore` API.

    `endpoint_url` defaults to `AWS_ENDPOINT_URL_BEDROCK_AGENTCORE`, then AWS. Loopback needs no AWS account. A local
    runtime (region `local`) gets the token in `AGENTCORE_RL_RUNTIME_TOKEN`, if that is set.

    >>> AgentCoreRuntime("my-agent")
    Traceback (most recent call last):
        ...
    agentcore_rl_toolkit.errors.ConfigError: 'my-agent' is not the ARN of an agent runtime
    hint: expected arn:aws:bedrock-agentcore:<region>:<account>:runtime/<name>
    """

    def __init__(
        self,
        arn: str,
        *,
        region: str | None = None,
        qualifier: str | None = None,
        max_concurrency: int = 50,
        max_attempts: int = 5,
        read_timeout: float = 900,
        endpoint_url: str | None = None,
    ) -> None:
        match = _ARN.fullmatch(arn) if isinstance(arn, str) else None
        if match is None:
            raise ConfigError(
                f"{arn!r} is not the ARN of an agent runtime",
                hint="expected arn:aws:bedrock-agentcore:<region>:<account>:runtime/<name>",
            )
        self._arn = arn
        region = region or match["region"]
        self._is_local = match["region"] == "local"
        self._region = "us-east-1" if region == "local" else region  # a signature needs a region of AWS
        env = os.environ.get
        self._endpoint = endpoint_url or env("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE") or env("AWS_ENDPOINT_URL")
        self._qualifier = {} if qualifier is None else {"qualifier": qualifier}
        self._settings: dict[str, Any] = {
            "retries": {"mode": "adaptive" if max_attempts > 1 else "standard", "total_max_attempts": max_attempts},
            "max_pool_connections": max_concurrency,
            "connect_timeout": 10,
            "read_timeout": read_timeout,
            "user_agent": f"agentcore-rl-toolkit/{__version__}",  # boto3's is made anew, twice, for each request
        }
        self._threads = ThreadPoolExecutor(max_concurrency, thread_name_prefix="agentcore")
        # A stop must not wait for a thread that reads from the session it stops.
        self._stop_threads = ThreadPoolExecutor(max_concurrency, thread_name_prefix="agentcore-stop")
        self._streams: weakref.WeakSet[_Stream[Any]] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._client: Any = None

    @property
    def arn(self) -> str:
        return self._arn

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        answer = await self._call("invoke_agent_runtime", session_id, payload=payload, contentType=content_type)
        raw = answer["response"]._raw_stream
        body: AsyncIterator[bytes]
        if (whole := answer.pop("whole", None)) is not None:
            body = one_piece(whole)
        else:
            body = _Stream(self._threads, raw, lambda: _read(raw))
            self._streams.add(body)
        return Invocation(
            session_id=answer.get("runtimeSessionId", session_id),
            status=answer["statusCode"],
            content_type=answer.get("contentType", ""),
            body=body,
            headers=answer["ResponseMetadata"]["HTTPHeaders"],
        )

    async def stop(self, session_id: str) -> None:
        await self._call("stop_runtime_session", session_id)

    async def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        body = {"command": command, "timeout": timeout}
        answer = await self._call("invoke_agent_runtime_command", session_id, body=body)
        raw, events = answer["stream"]._raw_stream, iter(answer["stream"])
        stream = _Stream(self._threads, raw, lambda: next(events, None))
        self._streams.add(stream)
        _set_read_timeout(raw, max(self._settings["read_timeout"], timeout + _COMMAND_GRACE))
        try:
            async for event in stream:
                chunk = event.get("chunk", {})
                if "contentStop" in chunk:
                    stop = chunk["contentStop"]
                    yield CommandEvent(exit_code=stop["exitCode"], status=stop["status"])
                    return
                if "contentDelta" in chunk:
                    yield CommandEvent(chunk["contentDelta"].get("stdout"), chunk["contentDelta"].get("stderr"))
            raise RuntimeFault(f"the event stream of a command in session {session_id} broke off")
        finally:
            await stream.aclose()

    async def aclose(self) -> None:
        """Close the client and every open stream, and cancel the calls that wait for a thread.

        A call that waits for its answer can't be interrupted; it ends on its thread when the service answers.
        """
        for stream in list(self._streams):
            await stream.aclose()
        for threads in (self._threads, self._stop_threads):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def _call(self, operation: str, session_id: str, **params: Any) -> dict[str, Any]:
        if not session_id.isprintable():  # boto3 would report a failed connection, and retry
            raise RuntimeFault(f"session id {session_id!r} has control characters", code="ValidationException")
        params |= {"agentRuntimeArn": self._arn, "runtimeSessionId": session_id} | self._qualifier
        threads = self._stop_threads if operation == "stop_runtime_session" else self._threads

        def call() -> dict[str, Any]:
            answer: dict[str, Any] = getattr(self._connect(), operation)(**params)
            raw = getattr(answer.get("response"), "_raw_stream", None)
            is_json = str(answer.get("contentType")).startswith("application/json")
            if raw is not None and is_json and 0 <= (raw.length_remaining or -1) <= _SHORT:
                answer["whole"] = raw.read()  # on this thread: an app's acceptance is not worth two more
                _release(raw)
            return answer

        return await _result(threads.submit(call))

    def _connect(self) -> Any:
        if self._client is not None:
            return self._client
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        with self._lock:
            if self._client is None:
                session = Session()
                settings, credentials = self._settings, self._token()
                if _is_loopback(self._endpoint):
                    settings = settings | {"proxies": {}}
                    # A laptop would wait for the metadata service of an EC2 instance until a timeout.
                    session.get_component("credential_provider").remove("iam-role")
                    if not credentials and session.get_credentials() is None:
                        credentials = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
                try:
                    self._client = boto3.session.Session(botocore_session=session).client(
                        "bedrock-agentcore",
                        region_name=self._region,
                        endpoint_url=self._endpoint,
                        config=Config(**settings),
                        **credentials,
                    )
                except (BotoCoreError, ValueError) as error:
                    raise ConfigError(f"boto3 can't make a client for bedrock-agentcore: {error}") from error
            return self._client

    def _token(self) -> dict[str, str]:
        """A local runtime's token as credentials. AWS gets the user's own."""
        token = os.environ.get(TOKEN_VARIABLE)
        if not token or not self._is_local:
            return {}
        return {"aws_access_key_id": token, "aws_secret_access_key": "local"}


class _Stream(AsyncIterator[T]):
    """The items of a streamed response, each read on a thread. Closing it ends a read in progress."""

    def __init__(self, threads: ThreadPoolExecutor, raw: Any, read: Callable[[], T | None]) -> None:
        self._threads = threads
        self._raw = raw
        self._read = read
        self._reading: Future[T | None] | None = None
        self._closed = False

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        self._reading = self._threads.submit(self._read)
        try:
            item = await _result(self._reading)
        except BaseException:  # a cancelled read continues on its thread, so the stream can't be used any more
            await self.aclose()
            raise
        if self._closed:
            raise RuntimeFault("the stream was closed while it was read")
        if item is None:
            await self.aclose()
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._reading is None or self._reading.done():
            _release(self._raw)
        else:
            # Closing needs the lock that the reader holds, so wake the reader first. urllib3 before 2.3 lacks
            # `shutdown`; there the reader's thread ends with the next byte or the read timeout.
            with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
                self._raw.shutdown()
            self._reading.add_done_callback(lambda _: _release(self._raw))


def _read(raw: Any) -> bytes | None:
    """The bytes that have arrived; None at the end."""
    from botocore.exceptions import IncompleteReadError

    chunk: bytes = getattr(raw, "read1", raw.read)(_CHUNK)
    if not chunk and raw.length_remaining:
        raise IncompleteReadError(actual_bytes=raw.tell(), expected_bytes=raw.tell() + raw.length_remaining)
    return chunk or None


def _set_read_timeout(raw: Any, seconds: float) -> None:
    """Set the read timeout of this one response."""
    from botocore.compat import set_socket_timeout

    with contextlib.suppress(AttributeError):  # the response is complete
        set_socket_timeout(raw, seconds)


def _release(raw: Any) -> None:
    raw.close()
    raw.release_conn()


async def _result(future: Future[T]) -> T:
    """The result of a thread's work; a failure of boto3 as a `RuntimeFault`."""
    try:
        return await asyncio.wrap_future(future)
    except Exception as error:
        fault = _fault(error)
        if fault is None:
            raise
        raise fault from error


def _fault(error: Exception) -> RuntimeFault | None:
    """The fault for an error of the service or the connection; None for other errors."""
    from botocore.eventstream import ParserError
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, ParamValidationError
    from urllib3.exceptions import HTTPError

    if isinstance(error, ClientError):
        return _client_fault(error)
    if isinstance(error, ParamValidationError):
        return RuntimeFault(str(error), code="ValidationException")
    if isinstance(error, NoCredentialsError):
        return RuntimeFault(str(error), code="AccessDeniedException", hint="set AWS credentials")
    if isinstance(error, (BotoCoreError, HTTPError, ParserError, OSError)):
        return RuntimeFault(f"the runtime could not be reached: {error}")
    return None


def _client_fault(error: Any) -> RuntimeFault:
    response = error.response
    meta = response.get("ResponseMetadata", {})
    code, message = response["Error"].get("Code", ""), response["Error"].get("Message", "")
    code = code[:1].upper() + code[1:]  # an event stream names errors by its members
    if code not in RuntimeFault.STATUS:
        code = _CODE_OF.get(meta.get("HTTPStatusCode", 500), "InternalServerException")
        message = str(error)
    headers = meta.get("HTTPHeaders", {})
    reason = headers.get(REASON_HEADER.lower())
    return RuntimeFault(
        message or str(error),
        code=code,
        reason=reason if reason in ("full", "agent") else None,
        retry_after=_seconds(headers.get("retry-after", "")),
    )


def _seconds(text: str) -> float | None:
    """A `Retry-After` in seconds; the local runtime sends fractions."""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) else None


_CODE_OF = {status: code for code, status in reversed(RuntimeFault.STATUS.items())}
"""The code for an error that the service model does not name, such as an expired token, by its status."""


def _is_loopback(url: str | None) -> bool:
    return url is not None and urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
