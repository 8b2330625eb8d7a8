"""The local runtime as AWS clients and people meet it: boto3 unchanged, raw HTTP, and the command line."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.exceptions import ClientError

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.runtime.local import LocalRuntime
from support.process import clean_env, free_port
from support.runtime import RuntimeUser, eventually, local_runtime, new_id

CLI = str(Path(sys.executable).parent / "agentcore-rl")
AGENT = """
from starlette.responses import Response

@app.rollout_entrypoint
def invoke_agent(payload, context):
    if payload.get("do") == "bad json":
        return Response("{half", media_type="application/json")
    if payload.get("do") == "sleep":
        print("going to sleep", flush=True)
        time.sleep(60)
    if payload.get("do") == "headers":
        return Response("{}", headers=payload["headers"], media_type="application/json")
    headers = {name.lower(): value for name, value in (context.request_headers or {}).items()}
    return {"said": payload.get("prompt"), "headers": headers}
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeUser]:
    with local_runtime(tmp_path_factory.mktemp("wire_agent"), AGENT) as user:
        yield user


@pytest.fixture
def aws(user: RuntimeUser, monkeypatch: pytest.MonkeyPatch) -> Any:
    """boto3 clients as any program makes them, with the two variables that `serve` prints."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-west-2"}
    endpoints = dict.fromkeys(["AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", "AWS_ENDPOINT_URL_S3"], user.runtime.endpoint_url)
    for name, value in (settings | endpoints).items():
        monkeypatch.setenv(name, value)
    return lambda service: boto3.client(service, region_name="us-west-2")


def test_boto3_unchanged(user: RuntimeUser, aws: Any) -> None:
    client, arn, session_id = aws("bedrock-agentcore"), user.agent.arn, new_id()
    assert arn.startswith("arn:aws:bedrock-agentcore:local:000000000000:runtime/wire_agent")
    answer = client.invoke_agent_runtime(agentRuntimeArn=arn, runtimeSessionId=session_id, payload=b'{"prompt": "hi"}')
    assert json.loads(answer["response"].read())["said"] == "hi"
    assert (answer["statusCode"], answer["contentType"]) == (200, "application/json")
    assert answer["runtimeSessionId"] == session_id
    command = client.invoke_agent_runtime_command(
        agentRuntimeArn=arn, runtimeSessionId=session_id, body={"command": "echo out; echo err >&2; exit 4"}
    )
    chunks = [event["chunk"] for event in command["stream"]]
    assert chunks[0] == {"contentStart": {}}
    assert {"contentDelta": {"stdout": "out\n"}} in chunks
    assert {"contentDelta": {"stderr": "err\n"}} in chunks
    assert chunks[-1] == {"contentStop": {"exitCode": 4, "status": "COMPLETED"}}
    assert client.stop_runtime_session(agentRuntimeArn=arn, runtimeSessionId=session_id)["statusCode"] == 200
    with pytest.raises(client.exceptions.ResourceNotFoundException, match="does not exist"):
        client.stop_runtime_session(agentRuntimeArn=arn, runtimeSessionId=session_id)


def test_a_rollout_written_for_aws(user: RuntimeUser, aws: Any) -> None:
    """What code written for AgentCore does: invoke, then look for the result in a bucket."""
    client, s3, session_id = aws("bedrock-agentcore"), aws("s3"), new_id()
    settings = {"exp_id": "exp", "input_id": "row", "s3_bucket": "rollouts"}
    payload = json.dumps({"prompt": "hi", "_rollout": settings}).encode()
    answer = client.invoke_agent_runtime(agentRuntimeArn=user.agent.arn, runtimeSessionId=session_id, payload=payload)
    key = json.loads(answer["response"].read())["result_key"]

    def stored() -> bool:
        return s3.list_objects_v2(Bucket="rollouts", Prefix=key)["KeyCount"] == 1

    eventually(stored)
    document = json.loads(s3.get_object(Bucket="rollouts", Key=key)["Body"].read())
    assert (document["said"], document["status_code"]) == ("hi", 200)


@pytest.mark.parametrize(
    ("arn", "code"),
    [
        ("arn:aws:bedrock-agentcore:local:000000000000:runtime/nobody", "ResourceNotFoundException"),
        ("arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math", "ResourceNotFoundException"),
        ("not-an-arn", "ValidationException"),
        ("arn:aws:s3:::bucket", "ValidationException"),
        (
            "arn:aws:bedrock-agentcore:local:000000000000:runtime/nobody/runtime-endpoint/DEFAULT",
            "ResourceNotFoundException",
        ),
    ],
)
def test_arns_that_are_not_here(aws: Any, arn: str, code: str) -> None:
    with pytest.raises(ClientError) as caught:
        aws("bedrock-agentcore").invoke_agent_runtime(agentRuntimeArn=arn, runtimeSessionId=new_id(), payload=b"{}")
    assert caught.value.response["Error"]["Code"] == code
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 404)


def test_endpoints(user: RuntimeUser, aws: Any) -> None:
    """An agent has one, DEFAULT; it may be named in the ARN or beside it, and the agent by its name and account."""
    client, name, session_id = aws("bedrock-agentcore"), user.agent.arn.rpartition("/")[2], new_id()
    endpoint = f"{user.agent.arn}/runtime-endpoint/DEFAULT"
    known: list[dict[str, str]] = [
        {"agentRuntimeArn": user.agent.arn, "qualifier": "DEFAULT"},
        {"agentRuntimeArn": endpoint},
        {"agentRuntimeArn": endpoint, "qualifier": "DEFAULT"},
        {"agentRuntimeArn": name, "accountId": "000000000000"},
    ]
    for place in known:
        answer = client.invoke_agent_runtime(**place, runtimeSessionId=session_id, payload=b'{"prompt": "hi"}')
        assert json.loads(answer["response"].read())["said"] == "hi"
    unknown: list[dict[str, str]] = [
        {"agentRuntimeArn": user.agent.arn, "qualifier": "prod"},
        {"agentRuntimeArn": f"{user.agent.arn}/runtime-endpoint/prod"},
        {"agentRuntimeArn": endpoint, "qualifier": "prod"},
        {"agentRuntimeArn": name, "accountId": "123456789012"},
    ]
    for place in unknown:
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.invoke_agent_runtime(**place, runtimeSessionId=session_id, payload=b"{}")
    for operation, more in (
        ("stop_runtime_session", {}),
        ("invoke_agent_runtime_command", {"body": {"command": "true"}}),
    ):
        call = getattr(client, operation)
        with pytest.raises(client.exceptions.ResourceNotFoundException, match="no endpoint 'prod'"):
            call(agentRuntimeArn=user.agent.arn, qualifier="prod", runtimeSessionId=session_id, **more)
    with pytest.raises(client.exceptions.ValidationException, match="accountId"):
        client.invoke_agent_runtime(agentRuntimeArn=name, runtimeSessionId=session_id, payload=b"{}")
    assert client.stop_runtime_session(agentRuntimeArn=endpoint, runtimeSessionId=session_id)["statusCode"] == 200


SENT = {
    "traceId": "Root=1-67891233-abcdef012345678912345678",
    "traceParent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "traceState": "vendor=1",
    "baggage": "team=blue",
}


def test_traces_and_mcp_sessions_come_back(user: RuntimeUser, aws: Any) -> None:
    client, session_id = aws("bedrock-agentcore"), new_id()
    place = {"agentRuntimeArn": user.agent.arn, "runtimeSessionId": session_id}
    mcp = {"mcpSessionId": "mcp-1", "mcpProtocolVersion": "2025-06-18"}
    answer = client.invoke_agent_runtime(**place, payload=b"{}", **SENT, **mcp)
    answer["response"].read()
    assert {name: answer[name] for name in SENT | mcp} == SENT | mcp
    command = client.invoke_agent_runtime_command(**place, body={"command": "true"}, **SENT)
    assert {name: command[name] for name in SENT} == SENT
    assert list(command["stream"])[-1]["chunk"]["contentStop"]["exitCode"] == 0

    own = {"Mcp-Session-Id": "given-by-the-app", "traceparent": "00-other", "X-Else": "no", "baggage": "grün"}
    answer = client.invoke_agent_runtime(
        **place, payload=json.dumps({"do": "headers", "headers": own}).encode(), mcpSessionId="mcp-1"
    )
    answer["response"].read()
    assert (answer["mcpSessionId"], answer["traceParent"]) == ("given-by-the-app", "00-other")
    assert "baggage" not in answer
    assert "x-else" not in answer["ResponseMetadata"]["HTTPHeaders"]
    answer = client.invoke_agent_runtime(**place, payload=b"{}")
    answer["response"].read()
    assert not set(answer) & (set(SENT) | set(mcp))


def test_what_only_aws_has_is_said_to_be_missing(user: RuntimeUser, aws: Any) -> None:
    client = aws("bedrock-agentcore")
    with pytest.raises(client.exceptions.ResourceNotFoundException, match=r"doesn't have GetAgentCard(.|\n)*hint: "):
        client.get_agent_card(agentRuntimeArn=user.agent.arn, runtimeSessionId=new_id())
    for path in ("ws", "ws/shells", "ws?qualifier=DEFAULT"):
        connection = http.client.HTTPConnection("127.0.0.1", user.runtime.port, timeout=30)
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        upgrade["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
        connection.request("GET", f"/runtimes/{quote(user.agent.arn, safe='')}/{path}", headers=upgrade)
        response = connection.getresponse()
        assert (response.status, response.headers["x-amzn-ErrorType"]) == (404, "ResourceNotFoundException")
        assert "doesn't have" in json.loads(response.read())["message"]
        connection.close()


def test_a_stop_that_is_sent_again_has_been_done(user: RuntimeUser, aws: Any) -> None:
    """boto3 sends the same token when the answer to the first request was lost."""
    client, session_id = aws("bedrock-agentcore"), new_id()
    user.ask(session_id)
    place = {"agentRuntimeArn": user.agent.arn, "runtimeSessionId": session_id, "clientToken": new_id()}
    for _ in range(2):
        assert client.stop_runtime_session(**place)["runtimeSessionId"] == session_id
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.stop_runtime_session(**place | {"clientToken": new_id()})


def raw(user: RuntimeUser, path: str, body: bytes = b"{}", **headers: str) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection("127.0.0.1", user.runtime.port, timeout=60)
    try:
        connection.request("POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return response.status, dict(response.headers), json.loads(response.read() or b"null")
    finally:
        connection.close()


def invocations(user: RuntimeUser) -> str:
    return f"/runtimes/{quote(user.agent.arn, safe='')}/invocations"


def test_faults_look_like_awss(user: RuntimeUser) -> None:
    status, headers, body = raw(user, invocations(user), X_Amzn_Bedrock_AgentCore_Runtime_Session_Id="short")
    assert (status, headers["x-amzn-ErrorType"]) == (400, "ValidationException")
    assert "33 to 256 characters, not 5" in body["message"]
    status, headers, body = raw(user, "/runtimes/x/nonsense")
    assert (status, headers["x-amzn-ErrorType"]) == (404, "ResourceNotFoundException")
    status, headers, body = raw(user, f"/runtimes/{quote(user.agent.arn, safe='')}/stopruntimesession")
    assert (status, headers["x-amzn-ErrorType"]) == (400, "ValidationException")
    assert "is missing" in body["message"]


def test_a_session_id_is_made_up_when_there_is_none(user: RuntimeUser) -> None:
    status, headers, _ = raw(user, invocations(user))
    assert status == 200
    assert len(headers["X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"]) >= 33


def test_a_body_over_100_mb(user: RuntimeUser) -> None:
    status, headers, body = raw(user, invocations(user), b"x" * 100_000_001)
    assert (status, headers["x-amzn-ErrorType"]) == (400, "ValidationException")
    assert "over 100,000,000 bytes" in body["message"]


def test_bad_json_to_and_from_the_app(user: RuntimeUser) -> None:
    status, _, body = raw(user, invocations(user), b"{not json")
    assert status == 424
    assert "Received error (400) from runtime" in body["message"]
    assert "Invalid JSON" in body["message"]
    status, _, body = raw(user, invocations(user), b'{"do": "bad json"}')
    assert status == 424
    assert "but is not JSON" in body["message"]
    assert "{half" in body["message"]


def test_headers_are_passed_on(user: RuntimeUser) -> None:
    _, _, body = raw(user, invocations(user), X_Amzn_Bedrock_AgentCore_Runtime_Custom_Team="blue", X_Other="no")
    assert body["headers"]["x-amzn-bedrock-agentcore-runtime-custom-team"] == "blue"
    assert "x-other" not in body["headers"]


def test_metrics(user: RuntimeUser) -> None:
    user.ask(prompt="x")
    raw(user, "/runtimes/x/nonsense")
    connection = http.client.HTTPConnection("127.0.0.1", user.runtime.port, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert int(values["agentcore_rl_sessions"]) == len(user.runtime.sessions)
    assert int(values["agentcore_rl_sessions_started_total"]) >= 1
    assert int(values['agentcore_rl_requests_total{operation="other",status="404"}']) >= 1


def test_two_runtimes_on_one_port(user: RuntimeUser) -> None:
    other = LocalRuntime(user.source, port=user.runtime.port)
    with pytest.raises(ConfigError, match=f"port {user.runtime.port} is in use"):
        other.__enter__()


# --- the command line ----------------------------------------------------------------------------------------------


def cli(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CLI, *args], capture_output=True, text=True, env=clean_env(), timeout=60)


def test_serve_ps_logs_and_ctrl_c(user: RuntimeUser, tmp_path: Path) -> None:
    port = free_port()
    command = [CLI, "runtime", "serve", str(user.source), "--port", str(port), "--name", "math", "--max-sessions", "7"]
    command += ["--allow-store", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_env())
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(6)][:3]
    url = f"http://127.0.0.1:{port}"
    arn = "arn:aws:bedrock-agentcore:local:000000000000:runtime/math"
    assert lines == [arn, f"export AWS_ENDPOINT_URL_BEDROCK_AGENTCORE={url}", f"export AWS_ENDPOINT_URL_S3={url}"]
    session_id = new_id()
    settings = {"exp_id": "exp", "input_id": "row", "s3_bucket": str(tmp_path)}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"X-Amzn-Bedrock-AgentCore-Runtime-Session-Id": session_id}
    body = json.dumps({"do": "sleep", "_rollout": settings})
    connection.request("POST", f"/runtimes/{quote(arn, safe='')}/invocations", body, headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()

    table = cli("runtime", "ps", "--url", url).stdout
    assert session_id in table
    assert "busy" in table
    assert "1 of 7 sessions" in table
    assert json.loads(cli("runtime", "ps", "--url", url, "--json").stdout)["max_sessions"] == 7
    eventually(lambda: "going to sleep" in cli("runtime", "logs", session_id[:8], "--url", url).stdout)
    missing = cli("runtime", "logs", "nobody", "--url", url)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "this session does not exist" in missing.stderr

    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "stopping 1 sessions" in err
    assert f"cut off: {session_id}" in err
    document = json.loads((tmp_path / answer["result_key"]).read_bytes())
    assert document["error"]["kind"] == "session_lost"


def test_nobody_there() -> None:
    done = cli("runtime", "ps", "--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert done.stderr.startswith("error: no runtime answers at")


def test_check_is_a_table() -> None:
    done = cli("runtime", "check")
    assert done.stdout.splitlines()[0].split()[:2] == ["protection", "holds"]
    assert done.returncode == (0 if "11 of 11" in done.stderr else 1)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "is not valid JSON"),
        ('{"agents": {}}', "names no agents"),
        ('{"agents": {"a": {}}}', "entry is missing"),
        ('{"agents": {"a": {"entry": "nowhere.py"}}}', "no agent found at"),
        ('{"agents": {"a": {"entry": "rl_app.py", "memory": 1}}}', "unknown setting 'memory'"),
        ('{"agents": {"a": {"entry": "rl_app.py", "policy": {"memory": 1}}}}', "unknown setting 'memory'"),
        ('{"agents": {"a": {"entry": "rl_app.py", "policy": {"memory_mb": -1}}}}', "memory_mb must be greater than 0"),
        ('{"agents": {"a": {"entry": "rl_app.py", "policy": {"allow": ["x"]}}}}', "'x' is not an address"),
        ('{"more": 1}', "may have agents"),
    ],
)
def test_bad_configs(user: RuntimeUser, tmp_path: Path, config: str, says: str) -> None:
    (tmp_path / "rl_app.py").write_text(user.source.read_text())
    (tmp_path / "runtime.json").write_text(config)
    done = cli("runtime", "serve", str(tmp_path / "runtime.json"), "--port", str(free_port()))
    assert done.returncode == 1
    assert says in done.stderr
