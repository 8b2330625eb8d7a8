"""The AWS runtime, against a scripted server on loopback that speaks the service's wire to the real boto3."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentcore_rl_toolkit import __version__
from agentcore_rl_toolkit.common.eventstream import CONTENT_TYPE, encode_event, encode_exception
from agentcore_rl_toolkit.errors import ConfigError, RuntimeFault
from agentcore_rl_toolkit.runtime.aws import AgentCoreRuntime
from agentcore_rl_toolkit.runtime.base import CommandEvent, Invocation

ARN = "arn:aws:bedrock-agentcore:local:000000000000:runtime/agent-1"
QUOTED = "arn%3Aaws%3Abedrock-agentcore%3Alocal%3A000000000000%3Aruntime%2Fagent-1"
SESSION = "session-0123456789-0123456789-0123456789"
SESSION_HEADER = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: bytes
    peer: Any


@dataclass
class Service:
    """Answers each request with the next of `answers`, the last one again and again."""

    answers: list[Answer] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    asked: threading.Event = field(default_factory=threading.Event)
    """Set by the first request."""
    go: threading.Event = field(default_factory=threading.Event)
    """A scripted answer waits for it."""
    gone: threading.Event = field(default_factory=threading.Event)
    """A scripted answer sets it when the client has hung up."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        self.seen.append(Seen(request.raw_path, dict(request.headers), await request.read(), peer))
        self.asked.set()
        return await (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request)

    async def until_gone(self, _: web.Request) -> None:
        try:
            await asyncio.Event().wait()
        finally:  # aiohttp cancels it then
            self.gone.set()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Service]:
    """The service on its own thread, and an environment without any AWS settings."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    service = Service()
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    yield service
    service.go.set()
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def run(service: Service, use: Callable[[AgentCoreRuntime], Coroutine[Any, Any, Any]], **settings: Any) -> Any:
    """Use a runtime on the service."""

    async def main() -> Any:
        runtime = AgentCoreRuntime(settings.pop("arn", ARN), endpoint_url=service.url, **settings)
        try:
            return await asyncio.wait_for(use(runtime), 30)
        finally:
            await runtime.aclose()

    return asyncio.run(main())


async def read(runtime: AgentCoreRuntime) -> bytes:
    return await (await runtime.invoke(SESSION, b"{}")).read()


async def events(runtime: AgentCoreRuntime, **options: Any) -> list[CommandEvent]:
    return [event async for event in runtime.command(SESSION, "ls", **options)]


def says(body: bytes, status: int = 200, **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers=headers)

    return answer


def fails(code: str, status: int, message: str = "no", **headers: str) -> Answer:
    return says(json.dumps({"message": message}).encode(), status, **{"x-amzn-ErrorType": code}, **headers)


def frame(**chunk: Any) -> bytes:
    return encode_event("chunk", json.dumps(chunk).encode())


def streams(
    *parts: bytes, before_last: Callable[[web.Request], Awaitable[Any]] | None = None, **headers: str
) -> Answer:
    """Sends the parts, and what `before_last` does before the last one."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for part in parts[:-1]:
            await response.write(part)
        if before_last is not None:
            await before_last(request)
        await response.write(parts[-1])
        return response

    return answer


def test_an_invoke_carries_the_session_the_payload_and_its_type(service: Service) -> None:
    service.answers = [
        says(b'{"ok":1}', 202, **{"Content-Type": "application/json", SESSION_HEADER: SESSION, "X-A": "b"})
    ]

    async def use(runtime: AgentCoreRuntime) -> tuple[Invocation, bytes]:
        answer = await runtime.invoke(SESSION, b'{"q":1}')
        return answer, await answer.read()

    answer, body = run(service, use)
    assert (answer.session_id, answer.status, answer.content_type) == (SESSION, 202, "application/json")
    assert body == b'{"ok":1}'
    assert answer.headers["x-a"] == "b"
    (seen,) = service.seen
    assert seen.path == f"/runtimes/{QUOTED}/invocations"
    assert seen.headers[SESSION_HEADER] == SESSION
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["User-Agent"].startswith(f"agentcore-rl-toolkit/{__version__}")
    assert seen.body == b'{"q":1}'


def test_another_content_type_and_a_qualifier(service: Service) -> None:
    service.answers = [says(b"x")]

    async def use(runtime: AgentCoreRuntime) -> None:
        await (await runtime.invoke(SESSION, b"raw", content_type="text/plain")).read()

    run(service, use, qualifier="v2")
    assert service.seen[0].headers["Content-Type"] == "text/plain"
    assert service.seen[0].path.endswith("/invocations?qualifier=v2")


def test_stop_names_the_session(service: Service) -> None:
    service.answers = [says(b"{}")]
    assert run(service, lambda runtime: runtime.stop(SESSION)) is None
    (seen,) = service.seen
    assert seen.path == f"/runtimes/{QUOTED}/stopruntimesession"
    assert seen.headers[SESSION_HEADER] == SESSION
    assert json.loads(seen.body)["clientToken"]


@pytest.mark.parametrize("headers", [{}, {"Content-Length": "10"}, {"Connection": "close"}])
def test_chunks_arrive_before_the_response_ends(service: Service, headers: dict[str, str]) -> None:
    wait = lambda _: asyncio.to_thread(service.go.wait, 20)  # noqa: E731
    service.answers = [streams(b"first", b"later", before_last=wait, **headers)]

    async def use(runtime: AgentCoreRuntime) -> list[bytes]:
        answer = await runtime.invoke(SESSION, b"{}")
        chunks = [await anext(answer.body)]
        service.go.set()
        return [*chunks, *[chunk async for chunk in answer.body]]

    assert run(service, use) == [b"first", b"later"]


def test_a_large_body_arrives_whole(service: Service) -> None:
    body = os.urandom(3_000_000)
    service.answers = [says(body)]
    assert run(service, read) == body


def test_a_connection_is_used_again_after_a_body_was_read(service: Service) -> None:
    service.answers = [says(b"x"), streams(b"x", b"y"), says(b"x")]

    async def use(runtime: AgentCoreRuntime) -> None:
        for _ in range(3):
            await read(runtime)

    run(service, use)
    assert len({seen.peer for seen in service.seen}) == 1


@pytest.mark.parametrize("chunks_read", [0, 1])
def test_closing_a_body_early_hangs_up(service: Service, chunks_read: int) -> None:
    service.answers = [streams(b"first", b"never", before_last=service.until_gone)]

    async def use(runtime: AgentCoreRuntime) -> bool:
        answer = await runtime.invoke(SESSION, b"{}")
        for _ in range(chunks_read):
            await anext(answer.body)
        await answer.body.aclose()  # type: ignore[attr-defined]
        assert [chunk async for chunk in answer.body] == []
        return await asyncio.to_thread(service.gone.wait, 10)

    assert run(service, use)


def test_cancelling_a_read_hangs_up_and_frees_its_thread(service: Service) -> None:
    service.answers = [streams(b"first", b"never", before_last=service.until_gone), says(b"next")]

    async def use(runtime: AgentCoreRuntime) -> tuple[bool, bytes]:
        answer = await runtime.invoke(SESSION, b"{}")
        await anext(answer.body)
        reader = asyncio.ensure_future(anext(answer.body))
        await asyncio.sleep(0.1)  # it is reading now
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        return await asyncio.to_thread(service.gone.wait, 10), await read(runtime)

    assert run(service, use, max_concurrency=1) == (True, b"next")


def test_cancelling_an_invoke_hangs_up_when_the_answer_comes(service: Service) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.to_thread(service.go.wait, 20)
        return await streams(b"first", b"never", before_last=service.until_gone)(request)

    service.answers = [slow]

    async def use(runtime: AgentCoreRuntime) -> bool:
        call = asyncio.ensure_future(runtime.invoke(SESSION, b"{}"))
        await asyncio.to_thread(service.asked.wait, 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        service.go.set()
        return await asyncio.to_thread(service.gone.wait, 10)

    assert run(service, use)


def test_stopping_does_not_wait_for_readers(service: Service) -> None:
    service.answers = [streams(b"first", b"never", before_last=service.until_gone), says(b"{}")]

    async def use(runtime: AgentCoreRuntime) -> None:
        answer = await runtime.invoke(SESSION, b"{}")
        await anext(answer.body)
        reader = asyncio.ensure_future(anext(answer.body))
        await asyncio.sleep(0.1)
        await asyncio.wait_for(runtime.stop(SESSION), 10)
        await runtime.aclose()
        with pytest.raises(RuntimeFault):
            await reader

    run(service, use, max_concurrency=1)
    assert service.gone.wait(10)


def test_a_caller_that_paces_requests_itself_is_not_slowed_down_by_throttles(service: Service) -> None:
    """A full runtime refuses a hundred invokes at once; the stops that make room in it must not wait behind them."""
    service.answers = [fails("ThrottlingException", 429)]

    async def use(runtime: AgentCoreRuntime) -> None:
        for _ in range(40):  # boto3's adaptive mode would be down to one request in two seconds
            with pytest.raises(RuntimeFault):
                await read(runtime)
        service.answers = [says(b"{}")]
        await runtime.stop(SESSION)

    run(service, use, max_attempts=1)
    assert len(service.seen) == 41


def test_throttling_is_retried(service: Service) -> None:
    throttled = fails("ThrottlingException", 429)
    service.answers = [throttled, throttled, says(b"at last")]
    assert run(service, read) == b"at last"
    assert len(service.seen) == 3
    assert {seen.headers[SESSION_HEADER] for seen in service.seen} == {SESSION}


def test_attempts_are_counted_and_the_last_failure_is_raised(service: Service) -> None:
    service.answers = [fails("ThrottlingException", 429, "slow down", **{"Retry-After": "7"})]
    with pytest.raises(RuntimeFault, match="slow down") as caught:
        run(service, read, max_attempts=2)
    assert len(service.seen) == 2
    assert (caught.value.code, caught.value.retry_after, caught.value.throttled) == ("ThrottlingException", 7.0, True)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(("code", "status"), RuntimeFault.STATUS.items())
def test_every_error_of_the_service_keeps_its_code(service: Service, code: str, status: int) -> None:
    service.answers = [fails(code, status, "the message")]
    with pytest.raises(RuntimeFault) as caught:
        run(service, lambda runtime: runtime.stop(SESSION), max_attempts=1)
    assert (caught.value.code, caught.value.status, str(caught.value)) == (code, status, "the message")
    assert caught.value.retry_after is None


@pytest.mark.parametrize(
    ("code", "message", "headers", "reason"),
    [
        ("ServiceQuotaExceededException", "too many sessions", {}, "full"),
        ("ThrottlingException", "slow down", {}, None),
        ("ThrottlingException", "all in use", {"X-AgentCore-RL-Reason": "full"}, "full"),
        ("RuntimeClientError", "Received error (500) from runtime. See the logs", {}, None),
        ("RuntimeClientError", "it could not be imported", {"X-AgentCore-RL-Reason": "agent"}, "agent"),
        ("RuntimeClientError", "the app's process ended", {"X-AgentCore-RL-Reason": "something new"}, None),
    ],
)
def test_what_a_code_does_not_tell_is_read_from_the_answer(
    service: Service, code: str, message: str, headers: dict[str, str], reason: str | None
) -> None:
    service.answers = [fails(code, RuntimeFault.STATUS[code], message, **headers, **{"Retry-After": "0.040"})]
    with pytest.raises(RuntimeFault) as caught:
        run(service, read, max_attempts=1)
    fault = caught.value
    assert (fault.reason, fault.full, fault.retry_after) == (reason, reason == "full", 0.04)
    assert fault.throttled == (code == "ThrottlingException" and reason is None)


@pytest.mark.parametrize(
    ("code", "status", "ours"),
    [
        ("ExpiredTokenException", 403, "AccessDeniedException"),
        ("SomethingNewException", 409, "ConflictException"),
        ("BadGateway", 502, "InternalServerException"),
    ],
)
def test_an_error_the_model_does_not_name_gets_the_code_of_its_status(
    service: Service, code: str, status: int, ours: str
) -> None:
    service.answers = [fails(code, status, "the message")]
    with pytest.raises(RuntimeFault, match=f"{code}.*the message") as caught:
        run(service, read, max_attempts=1)
    assert caught.value.code == ours


@pytest.mark.parametrize(
    "use",
    [
        lambda runtime: runtime.invoke("short", b"{}"),
        lambda runtime: anext(runtime.command("short", "ls")),
        lambda runtime: runtime.stop("short"),
    ],
)
def test_a_session_id_boto3_refuses_is_a_validation_fault(service: Service, use: Any) -> None:
    with pytest.raises(RuntimeFault, match="valid min length: 33") as caught:
        run(service, use)
    assert caught.value.code == "ValidationException"
    assert service.seen == []


def test_a_session_id_http_cannot_carry_is_a_validation_fault(service: Service) -> None:
    with pytest.raises(RuntimeFault, match="control characters") as caught:
        run(service, lambda runtime: runtime.invoke(SESSION + "\n", b"{}"))
    assert caught.value.code == "ValidationException"


def test_a_commands_events(service: Service) -> None:
    service.answers = [
        streams(
            frame(contentStart={}),
            frame(contentDelta={"stdout": "a\n"}) + frame(contentDelta={"stderr": "b"}),
            frame(contentStop={"exitCode": 3, "status": "TIMED_OUT"}),
            **{"Content-Type": CONTENT_TYPE},
        )
    ]
    assert run(service, lambda runtime: events(runtime, timeout=7)) == [
        CommandEvent(stdout="a\n"),
        CommandEvent(stderr="b"),
        CommandEvent(exit_code=3, status="TIMED_OUT"),
    ]
    (seen,) = service.seen
    assert seen.path == f"/runtimes/{QUOTED}/commands"
    assert json.loads(seen.body) == {"command": "ls", "timeout": 7}
    assert seen.headers[SESSION_HEADER] == SESSION


def test_a_commands_output_arrives_while_it_runs(service: Service) -> None:
    wait = lambda _: asyncio.to_thread(service.go.wait, 20)  # noqa: E731
    stop = frame(contentStop={"exitCode": 0, "status": "COMPLETED"})
    service.answers = [streams(frame(contentDelta={"stdout": "a"}), stop, before_last=wait)]

    async def use(runtime: AgentCoreRuntime) -> list[CommandEvent]:
        command = runtime.command(SESSION, "ls")
        first = await anext(command)
        service.go.set()
        return [first, *[event async for event in command]]

    assert run(service, use) == [CommandEvent(stdout="a"), CommandEvent(exit_code=0, status="COMPLETED")]


def test_leaving_a_command_hangs_up(service: Service) -> None:
    service.answers = [streams(frame(contentDelta={"stdout": "a"}), b"never", before_last=service.until_gone)]

    async def use(runtime: AgentCoreRuntime) -> bool:
        command = runtime.command(SESSION, "ls")
        await anext(command)
        await command.aclose()  # type: ignore[attr-defined]
        return await asyncio.to_thread(service.gone.wait, 10)

    assert run(service, use)


def test_a_silent_command_is_waited_for_as_long_as_it_may_run(service: Service) -> None:
    stop = frame(contentStop={"exitCode": 0, "status": "COMPLETED"})
    service.answers = [streams(frame(contentStart={}), stop, before_last=lambda _: asyncio.sleep(1))]
    assert run(service, lambda runtime: events(runtime, timeout=5), read_timeout=0.3)[-1].exit_code == 0


def test_an_error_within_a_command_is_a_fault(service: Service) -> None:
    service.answers = [streams(frame(contentStart={}), encode_exception("ServiceQuotaExceededException", "too many"))]
    with pytest.raises(RuntimeFault, match="too many") as caught:
        run(service, events)
    assert (caught.value.code, caught.value.status) == ("ServiceQuotaExceededException", 402)


@pytest.mark.parametrize("last", [b"", b"not a frame at all, just bytes"])
def test_a_command_without_an_end_is_a_fault(service: Service, last: bytes) -> None:
    service.answers = [streams(frame(contentDelta={"stdout": "a"}), last)]
    with pytest.raises(RuntimeFault) as caught:
        run(service, events)
    assert caught.value.code == "InternalServerException"


def test_a_body_that_is_cut_is_a_fault(service: Service) -> None:
    async def cut(request: web.Request) -> None:
        assert request.transport is not None
        request.transport.close()

    for headers in ({"Content-Length": "10"}, {}):
        service.answers = [streams(b"first", b"later", before_last=cut, **headers)]
        with pytest.raises(RuntimeFault) as caught:
            run(service, read)
        assert caught.value.code == "InternalServerException"


def test_a_body_that_stalls_is_a_fault(service: Service) -> None:
    service.answers = [streams(b"first", b"never", before_last=service.until_gone)]
    with pytest.raises(RuntimeFault, match="timed out") as caught:
        run(service, read, read_timeout=0.3)
    assert caught.value.code == "InternalServerException"
    assert service.gone.wait(10)


def test_a_service_that_is_down_is_a_fault_with_its_cause(service: Service) -> None:
    service.url = "http://127.0.0.1:9"
    with pytest.raises(RuntimeFault, match=r"127\.0\.0\.1:9") as caught:
        run(service, read, max_attempts=1)
    assert caught.value.code == "InternalServerException"
    assert caught.value.__cause__ is not None


def test_on_loopback_nothing_of_aws_is_needed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.answers = [says(b"x")]
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert run(service, read) == b"x"
    (seen,) = service.seen  # the metadata service was not asked
    assert "/us-east-1/bedrock-agentcore/aws4_request" in seen.headers["Authorization"]


def test_the_endpoint_may_come_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.answers = [says(b"x")]
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", service.url.replace("127.0.0.1", "localhost"))
    service.url = ""
    assert run(service, read) == b"x"


def test_credentials_that_are_there_are_used(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.answers = [says(b"x")]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDREAL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    run(service, read, arn=ARN.replace("local", "eu-west-1"))
    run(service, read, arn=ARN.replace("local", "eu-west-1"), region="us-west-2")
    signed = [seen.headers["Authorization"] for seen in service.seen]
    assert all("Credential=AKIDREAL/" in one for one in signed)
    assert "/eu-west-1/" in signed[0]
    assert "/us-west-2/" in signed[1]


def test_away_from_loopback_missing_credentials_are_a_fault(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    service.url = "https://agentcore.invalid"
    with pytest.raises(RuntimeFault, match=r"(?s)credentials.*hint: set AWS credentials") as caught:
        run(service, read)
    assert caught.value.code == "AccessDeniedException"


def test_an_endpoint_must_be_a_url(service: Service) -> None:
    service.url = "no url"
    with pytest.raises(ConfigError, match="no url"):
        run(service, read)


@pytest.mark.parametrize(
    "arn",
    ["", "agent", "arn:aws:s3:::bucket", ARN.replace("runtime/", "memory/"), ARN.replace(":local:", "::"), ARN + "\n",
     ARN.removesuffix("agent-1"), None],
)  # fmt: skip
def test_a_malformed_arn_is_refused_at_once(arn: Any) -> None:
    with pytest.raises(ConfigError, match="hint: expected arn:aws:bedrock-agentcore:"):
        AgentCoreRuntime(arn)


def test_importing_it_does_not_import_boto3() -> None:
    code = (
        "import sys; from agentcore_rl_toolkit.runtime.aws import AgentCoreRuntime;"
        f"AgentCoreRuntime({ARN!r}); print('boto3' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
