"""Shell commands over the wire of the local runtime: silent ones, re-sent ones, abandoned ones, hostile sessions."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from agentcore_rl_toolkit.errors import RuntimeFault
from support.fault_proxy import FaultProxy
from support.runtime import RuntimeUser, eventually, local_runtime, new_id

SESSION = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
AGENT = """
@app.rollout_entrypoint
def invoke_agent(payload):
    return {}
"""
HOSTILE = """
from agentcore_rl_toolkit.runtime.hosting import commands

async def hostile(receive, send):
    body = (await receive())["body"].decode()
    await send({"type": "http.response.start", "status": 500 if "status" in body else 200, "headers": []})
    async def say(data, more=True):
        await send({"type": "http.response.body", "body": data, "more_body": more})
    if "endless line" in body:
        while True:
            await say(b"x" * 65536)
    if "junk" in body:
        await say(b'{"stdout": "before"}\\n{"stdout": ["junk", null]}\\n')
    if "half" in body:
        await say(b'{"stdout": "before"}\\n{"exit_co')
    if "nothing" in body:
        return await say(b"", more=False)
    if "die" in body:
        await say(b'{"stdout": "before"}\\n')
        os._exit(3)
    await say(b"", more=False)

commands.run_command = hostile

@app.rollout_entrypoint
def invoke_agent(payload):
    return {}
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeUser]:
    with local_runtime(tmp_path_factory.mktemp("agent"), AGENT, spares=1) as user:
        yield user


@pytest.fixture
def session(user: RuntimeUser) -> str:
    user.ask(session_id := new_id())
    return session_id


@contextlib.contextmanager
def client(url: str, *, attempts: int = 1) -> Iterator[Any]:
    made = boto3.client(
        "bedrock-agentcore",
        endpoint_url=url,
        region_name="us-west-2",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(retries={"mode": "standard", "total_max_attempts": attempts}, read_timeout=20),
    )
    yield made
    made.close()


def run(aws: Any, user: RuntimeUser, session_id: str, command: str) -> Iterator[dict[str, Any]]:
    stream = aws.invoke_agent_runtime_command(
        agentRuntimeArn=user.agent.arn, runtimeSessionId=session_id, body={"command": command, "timeout": 60}
    )["stream"]
    with contextlib.closing(stream):
        yield from (event["chunk"] for event in stream)


def live(user: RuntimeUser, session_id: str) -> Any:
    return next(session for session in user.runtime.sessions if session.id == session_id)


def test_a_silent_command_begins_at_once(user: RuntimeUser, session: str) -> None:
    """Else boto3 would wait for the first byte of the answer, and after its read timeout send the command again."""
    with client(user.runtime.endpoint_url) as aws:
        events = run(aws, user, session, "until [ -e go ]; do sleep 0.02; done")
        assert next(events) == {"contentStart": {}}
        user.sh(session, "touch go")
        assert list(events) == [{"contentStop": {"exitCode": 0, "status": "COMPLETED"}}]


def test_a_command_that_is_sent_again_runs_once(user: RuntimeUser, session: str) -> None:
    faulty = FaultProxy(user.runtime.endpoint_url, faults=("cut after",), rate=0.5, seed=1)
    refused = pytest.raises(ClientError, match="has started its command already")
    with faulty.serving() as proxy, client(proxy.url, attempts=3) as aws, refused:
        list(run(aws, user, session, "echo ran >> times"))
    assert proxy.counts["cut after"] >= 1
    assert user.sh(session, "cat times") == "ran\n"


def post(user: RuntimeUser, session_id: str, command: str, **headers: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", user.runtime.port, timeout=30)
    path = f"/runtimes/{quote(user.agent.arn, safe='')}/commands"
    connection.request("POST", path, json.dumps({"command": command}), {SESSION: session_id} | headers)
    return connection


def test_a_command_ends_with_its_callers_connection(user: RuntimeUser, session: str) -> None:
    connection = post(user, session, "echo $$; exec sleep 3600")
    assert connection.getresponse().read(1)
    eventually(lambda: live(user, session).app.in_flight == 1)
    connection.close()
    eventually(lambda: live(user, session).app.in_flight == 0)
    assert user.sh(session, "pgrep -x sleep || echo none") == "none\n"


def test_in_flight_counts_what_is_in_flight(user: RuntimeUser, session: str) -> None:
    async def leave_early() -> None:
        events = user.agent.command(session, "echo a; sleep 3600")
        assert (await anext(events)).stdout == "a\n"  # type: ignore[call-overload]
        assert live(user, session).app.in_flight == 1
        await events.aclose()  # type: ignore[attr-defined]

    user.threads.run(leave_early())
    assert live(user, session).app.in_flight == 0
    assert user.sh(session, "echo b") == "b\n"
    assert live(user, session).app.in_flight == 0


def test_output_full_of_what_json_escapes(user: RuntimeUser, session: str) -> None:
    assert user.sh(session, "head -c 300000 /dev/zero") == "\0" * 300_000


def test_a_command_that_the_system_can_not_start(user: RuntimeUser, session: str) -> None:
    """65,536 characters are allowed, but they may have more bytes than a program's argument can."""
    events = user.threads.collect(user.agent.command(session, ": " + "😀" * 40_000))
    assert "Argument list too long" in (events[0].stderr or "")
    assert (events[-1].exit_code, events[-1].status) == (126, "COMPLETED")


def test_many_silent_commands_at_once(user: RuntimeUser, session: str) -> None:
    connections = [post(user, session, "until [ -e go ]; do sleep 0.05; done; echo b") for _ in range(5)]
    user.sh(session, "touch go")
    for connection in connections:
        assert b"COMPLETED" in connection.getresponse().read()
        connection.close()
    assert live(user, session).app.in_flight == 0


# --- sessions that lie -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeUser]:
    with local_runtime(tmp_path_factory.mktemp("hostile"), HOSTILE, spares=1) as user:
        yield user


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("endless line", "a line of more than"),
        ("junk", "is not an event"),
        ("half", "broke off"),
        ("nothing", "broke off"),
        ("status", "could not be started"),
        ("die", "the app's process ended (exit code 3)"),
    ],
)
def test_whatever_a_session_says_is_one_fault(hostile: RuntimeUser, what: str, says: str) -> None:
    hostile.ask(session_id := new_id())
    with pytest.raises(RuntimeFault) as caught:
        hostile.sh(session_id, what)
    assert caught.value.code == "RuntimeClientError"
    assert says in str(caught.value)
    if what != "die":
        assert live(hostile, session_id).app.in_flight == 0
    hostile.ask(session_id := new_id())
    with client(hostile.runtime.endpoint_url) as aws, pytest.raises(aws.exceptions.ClientError) as refused:
        list(run(aws, hostile, session_id, what))
    assert refused.value.response["Error"]["Code"] == "runtimeClientError"
    assert says in refused.value.response["Error"]["Message"]
    with contextlib.suppress(StopIteration):
        eventually(lambda: live(hostile, session_id).app.in_flight == 0)
