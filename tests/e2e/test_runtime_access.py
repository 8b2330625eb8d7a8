"""Who may talk to the local runtime's port, and which folders a caller may name: asked of a running one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from agentcore_rl_toolkit.errors import ConfigError, RuntimeFault
from agentcore_rl_toolkit.runtime.aws import AgentCoreRuntime
from agentcore_rl_toolkit.runtime.local import LocalRuntime
from support.agent import rollout
from support.process import clean_env, free_port
from support.runtime import RuntimeUser, eventually, local_runtime, new_id

CLI = str(Path(sys.executable).parent / "agentcore-rl")
SESSION = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
AGENT = """
@app.rollout_entrypoint
def invoke_agent(payload):
    if payload.get("do") == "exit":
        os._exit(7)
    print(payload.get("print", ""), flush=True)
    return {"said": payload.get("prompt")}
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[RuntimeUser]:
    """On loopback, as anybody runs it."""
    with local_runtime(tmp_path_factory.mktemp("agent"), AGENT, stores=[stores], spares=1) as user:
        yield user


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeUser]:
    """On every address of the machine."""
    settings = {"host": "0.0.0.0", "allow_hosts": ["runtime.internal"], "protections": [], "spares": 1}
    with local_runtime(tmp_path_factory.mktemp("public"), AGENT, **settings) as user:
        yield user


def send(
    user: RuntimeUser, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", user.runtime.port, timeout=30)
    try:
        connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read().decode()
    finally:
        connection.close()


def invoke_path(user: RuntimeUser) -> str:
    return f"/runtimes/{quote(user.agent.arn, safe='')}/invocations"


def everything(user: RuntimeUser) -> list[tuple[str, str]]:
    """Every route that there is."""
    base = invoke_path(user).removesuffix("/invocations")
    posts = [("POST", f"{base}/{name}") for name in ("invocations", "stopruntimesession", "commands", "nonsense")]
    gets = [("GET", path) for path in ("/metrics", "/sessions", "/logs/x", "/", "/a-bucket/a/key", "/favicon.ico")]
    return [
        *posts,
        *gets,
        ("PUT", "/a-bucket/a/key"),
        ("DELETE", "/a-bucket/a/key"),
        ("OPTIONS", invoke_path(user)),
        ("OPTIONS", "*"),
    ]


def assert_refused(user: RuntimeUser, says: str, *, hint: str, **headers: str) -> None:
    """On every route, before anything happens."""
    before = dict(user.runtime.counts)
    for method, path in everything(user):
        status, given, text = send(user, method, path, b"{}", **{SESSION: new_id()} | headers)
        assert status == 403, (method, path, text)
        assert says in text, (method, path, text)
        assert hint in text, (method, path, text)
        if path.startswith(("/runtimes/", "/metrics", "/sessions", "/logs")):
            assert given["x-amzn-ErrorType"] == "AccessDeniedException"
        else:
            assert "<Code>AccessDenied</Code>" in text
    assert user.runtime.counts == before


# --- browsers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "0.0.0.0:1", "", "[::1"])
def test_a_name_that_is_not_the_runtimes_is_refused(user: RuntimeUser, host: str) -> None:
    """DNS rebinding: the page's own name leads to this port, and the browser takes us for the page's server."""
    assert_refused(user, "Host", hint="--allow-host", Host=host)


@pytest.mark.parametrize("host", ["localhost", "LocalHost:{port}", "127.0.0.1:9", "[::1]:{port}", "127.8.8.8"])
def test_names_of_loopback_are_the_runtimes(user: RuntimeUser, host: str) -> None:
    assert send(user, "GET", "/metrics", Host=host.format(port=user.runtime.port))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_a_web_page_can_ask_for_nothing(user: RuntimeUser, headers: dict[str, str]) -> None:
    assert_refused(user, "web page", hint="browser", **headers)


def test_the_runtimes_own_pages_and_the_address_bar_may(user: RuntimeUser) -> None:
    own = f"http://127.0.0.1:{user.runtime.port}"
    assert send(user, "GET", "/metrics", Origin=own, Sec_Fetch_Site="same-origin")[0] == 200
    assert send(user, "GET", "/metrics", Sec_Fetch_Site="none")[0] == 200


# --- the token -------------------------------------------------------------------------------------------------------


def as_another_user(port: int, method: str, path: str, body: str = "{}", then: str = "", **headers: str) -> Any:
    """What a process of another user is answered; `then` is what it does instead of reading."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    read = "r = c.getresponse(); print(json.dumps([r.status, r.read().decode()]))"
    code = (
        "import encodings.idna, http.client, json, os, sys\n"
        "port, method, path, body, headers = json.loads(sys.argv[1])\n"
        "os.setgroups([]); os.setresgid(12345, 12345, 12345); os.setresuid(12345, 12345, 12345)\n"
        "c = http.client.HTTPConnection('127.0.0.1', port, timeout=30)\n"
        f"c.request(method, path, body, headers)\n{then or read}\n"
    )
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    command = [sys.executable, "-c", code, json.dumps([port, method, path, body, given])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_env(), timeout=60)
    return json.loads(done.stdout or "null")


def test_another_user_of_this_machine_needs_the_token(user: RuntimeUser) -> None:
    for method, path in everything(user):
        status, text = as_another_user(user.runtime.port, method, path, **{SESSION: new_id()})
        assert status == 403, (method, path)
        assert "token" in text, (method, path, text)
        assert "AGENTCORE_RL_RUNTIME_TOKEN" in text, (method, path, text)
    status, text = as_another_user(
        user.runtime.port,
        "POST",
        invoke_path(user),
        Authorization=f"Bearer {user.runtime.settings.token}",
        **{SESSION: new_id()},
    )
    assert (status, json.loads(text)) == (200, {"said": None})


def test_a_closed_connection_of_another_user_is_not_taken_for_roots(user: RuntimeUser) -> None:
    """The kernel reports a socket that was closed as root's: whoever doesn't wait for the answer must not get in."""
    before = dict(user.runtime.counts)
    for _ in range(20):
        as_another_user(user.runtime.port, "POST", invoke_path(user), then="c.close()", **{SESSION: new_id()})
    send(user, "GET", "/metrics")
    assert user.runtime.counts == before


def test_a_wrong_bearer_token_is_always_refused(user: RuntimeUser) -> None:
    assert_refused(user, "token", hint="AGENTCORE_RL_RUNTIME_TOKEN", Authorization="Bearer wrong")
    assert send(user, "GET", "/metrics", Authorization=f"Bearer {user.runtime.settings.token}")[0] == 200


def test_beyond_loopback_everybody_needs_the_token(public: RuntimeUser) -> None:
    """Even this process, over loopback."""
    assert_refused(public, "token", hint="AGENTCORE_RL_RUNTIME_TOKEN")
    for given in (f"Bearer {public.runtime.settings.token}", f"AWS {public.runtime.settings.token}:signature"):
        assert send(public, "GET", "/metrics", Authorization=given)[0] == 200
    for wrong in (
        "Basic x",
        "AWS x:y",
        "AWS4-HMAC-SHA256 Credential=x/20240101/a/b/aws4_request, Signature=0",
        "Bearer",
    ):
        assert send(public, "GET", "/metrics", Authorization=wrong)[0] == 403
    assert public.runtime.endpoint_url == f"http://127.0.0.1:{public.runtime.port}"


def test_beyond_loopback_names_are_configured_or_the_address_that_was_dialled(public: RuntimeUser) -> None:
    token = f"Bearer {public.runtime.settings.token}"
    assert send(public, "GET", "/metrics", Host="runtime.internal:80", Authorization=token)[0] == 200
    assert send(public, "GET", "/metrics", Host="127.0.0.1", Authorization=token)[0] == 200
    for host in ("10.9.8.7", "0.0.0.0", "runtime.internal.evil.example"):
        assert send(public, "GET", "/metrics", Host=host, Authorization=token)[0] == 403


def clients(user: RuntimeUser, key: str) -> tuple[Any, Any]:
    place = {"endpoint_url": user.runtime.endpoint_url, "region_name": "us-west-2"}
    credentials = {"aws_access_key_id": key, "aws_secret_access_key": "any"}
    settings = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    return tuple(boto3.client(name, **place, **credentials, config=settings) for name in ("bedrock-agentcore", "s3"))


def test_boto3_sends_the_token_as_its_access_key(public: RuntimeUser) -> None:
    agents, s3 = clients(public, public.runtime.settings.token)
    arn, session_id = public.agent.arn, new_id()
    answer = agents.invoke_agent_runtime(agentRuntimeArn=arn, runtimeSessionId=session_id, payload=b'{"prompt": "hi"}')
    assert json.loads(answer["response"].read()) == {"said": "hi"}
    s3.put_object(Bucket="a-bucket", Key="a/key", Body=b"data")
    assert s3.get_object(Bucket="a-bucket", Key="a/key")["Body"].read() == b"data"
    for version in ("s3v4", "s3"):
        signer = boto3.client(
            "s3",
            endpoint_url=public.runtime.endpoint_url,
            region_name="us-west-2",
            aws_access_key_id=public.runtime.settings.token,
            aws_secret_access_key="any",
            config=Config(signature_version=version, s3={"addressing_style": "path"}),
        )
        url = signer.generate_presigned_url("get_object", {"Bucket": "a-bucket", "Key": "a/key"})
        assert send(public, "GET", url.removeprefix(public.runtime.endpoint_url))[2] == "data"
        forged = url.replace(public.runtime.settings.token, "AKIAIOSFODNN7EXAMPLE")
        assert send(public, "GET", forged.removeprefix(public.runtime.endpoint_url))[0] == 403

    agents, s3 = clients(public, "AKIAIOSFODNN7EXAMPLE")
    with pytest.raises(agents.exceptions.AccessDeniedException, match="token"):
        agents.invoke_agent_runtime(agentRuntimeArn=arn, runtimeSessionId=session_id, payload=b"{}")
    with pytest.raises(ClientError, match="AccessDenied"):
        s3.get_object(Bucket="a-bucket", Key="a/key")


def test_ones_own_processes_use_any_credentials_on_loopback(user: RuntimeUser) -> None:
    agents, s3 = clients(user, "AKIAIOSFODNN7EXAMPLE")
    arn, session_id = user.agent.arn, new_id()
    answer = agents.invoke_agent_runtime(agentRuntimeArn=arn, runtimeSessionId=session_id, payload=b'{"prompt": "hi"}')
    assert json.loads(answer["response"].read()) == {"said": "hi"}
    s3.put_object(Bucket="a-bucket", Key="a/key", Body=b"data")


def test_our_client_finds_the_token_in_the_environment(public: RuntimeUser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside credentials for AWS, which it leaves alone."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AGENTCORE_RL_RUNTIME_TOKEN", public.runtime.settings.token)
    runtime = AgentCoreRuntime(public.agent.arn, endpoint_url=public.runtime.endpoint_url, max_attempts=1)

    async def ask() -> bytes:
        try:
            return await (await runtime.invoke(new_id(), b'{"prompt": "hi"}')).read()
        finally:
            await runtime.aclose()

    assert json.loads(public.threads.run(ask())) == {"said": "hi"}


def test_lost_rollouts_are_reported_to_a_bucket_of_a_guarded_runtime(public: RuntimeUser) -> None:
    """The runtime stores them over its own port, and has its own token."""
    with contextlib.suppress(RuntimeFault):  # it may be gone before it has answered
        public.ask(session_id := new_id(), do="exit", _rollout=rollout("lost-bucket"))
    eventually(lambda: not any(session.id == session_id for session in public.runtime.sessions))
    _, s3 = clients(public, public.runtime.settings.token)
    document = s3.get_object(Bucket="lost-bucket", Key=f"exp/row/{session_id}.json")["Body"].read()
    assert json.loads(document)["error"]["kind"] == "session_lost"


@pytest.mark.parametrize("token", ["short", "with a space in it", "with/slash/in/it/xxxxxx", "grün" * 8])
def test_tokens_that_would_not_do(user: RuntimeUser, token: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        LocalRuntime(user.source, token=token)


def test_tokens_are_made_given_or_from_the_environment(user: RuntimeUser, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LocalRuntime(user.source).token != LocalRuntime(user.source).token
    assert len(LocalRuntime(user.source).token) >= 32
    assert LocalRuntime(user.source, token="t" * 20).token == "t" * 20
    monkeypatch.setenv("AGENTCORE_RL_RUNTIME_TOKEN", "e" * 20)
    assert LocalRuntime(user.source).token == "e" * 20
    assert LocalRuntime(user.source, token="t" * 20).token == "t" * 20


# --- stores ----------------------------------------------------------------------------------------------------------


def store_fault(user: RuntimeUser, name: Any, **headers: str) -> tuple[int, str]:
    body = json.dumps({"_rollout": rollout("x") | {"s3_bucket": name}}).encode()
    status, _, text = send(user, "POST", invoke_path(user), body, **{SESSION: new_id()} | headers)
    return status, text


def test_a_caller_names_only_stores_that_the_runtime_was_started_with(
    user: RuntimeUser, stores: Path, tmp_path: Path
) -> None:
    (stores / "way-out").symlink_to(tmp_path)
    outside = [
        *(str(tmp_path), f"file://{tmp_path}", f"file://localhost{tmp_path}", f"{stores}/../elsewhere"),
        *(f"{stores}-twin", f"{stores}/way-out", f"{stores}/way-out/below", f"file://{quote(f'{stores}/../x')}"),
        *(f"file://{stores}/%2e%2e/x", f"FILE://{tmp_path}", f"file:{tmp_path}", f"//{tmp_path}"),
    ]
    before = dict(user.runtime.counts)
    for name in outside:
        status, text = store_fault(user, name)
        assert status == 403 if not name.startswith("FILE") else status in (403, 424), (name, text)
        if status == 403:
            assert "AccessDeniedException" in text
            assert "--allow-store" in text
    assert user.runtime.counts["started"] <= before["started"] + 1  # the app itself refuses FILE://
    assert list(tmp_path.iterdir()) == []

    for name in (str(stores), f"{stores}/below/it", f"file://{stores}/as-url"):
        session_id = new_id()
        body = json.dumps({"_rollout": rollout(name)}).encode()
        status, _, text = send(user, "POST", invoke_path(user), body, **{SESSION: session_id})
        assert status == 200, text
        path = Path(urlsplit(name).path) / "exp" / "row" / f"{session_id}.json"
        eventually(path.exists)


def test_calls_in_process_name_any_store(user: RuntimeUser, tmp_path: Path) -> None:
    """They are the user's own code."""
    session_id = new_id()
    answer = user.ask(session_id, _rollout=rollout(tmp_path))
    eventually((tmp_path / answer["result_key"]).exists)


def test_buckets_are_no_folders(user: RuntimeUser) -> None:
    assert store_fault(user, "a-bucket")[0] == 200


def test_by_default_stores_are_below_the_current_folder(
    user: RuntimeUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalRuntime(user.source).stores == [str(tmp_path)]
    assert LocalRuntime(user.source, stores=["results", "/x/../y"]).stores == [str(tmp_path / "results"), "/y"]
    monkeypatch.chdir("/")
    assert LocalRuntime(user.source).stores == []  # would be every folder that there is


# --- the command line ------------------------------------------------------------------------------------------------


def test_serve_prints_the_token_and_ps_and_logs_send_it(user: RuntimeUser, tmp_path: Path) -> None:
    port = free_port()
    command = [CLI, "runtime", "serve", str(user.source), "--port", str(port), "--host", "0.0.0.0"]
    command += ["--allow-host", "runtime.internal", "--allow-store", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_env())
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(6)]
        url = f"http://127.0.0.1:{port}"
        token = lines[3].partition("=")[2]
        assert len(token) >= 32
        assert lines[1:] == [
            f"export AWS_ENDPOINT_URL_BEDROCK_AGENTCORE={url}",
            f"export AWS_ENDPOINT_URL_S3={url}",
            f"export AGENTCORE_RL_RUNTIME_TOKEN={token}",
            "export AWS_ACCESS_KEY_ID=$AGENTCORE_RL_RUNTIME_TOKEN",
            "export AWS_SECRET_ACCESS_KEY=local",
        ]

        def cli(verb: str, **env: str) -> subprocess.CompletedProcess[str]:
            whole = [CLI, "runtime", *verb.split(), "--url", url]
            return subprocess.run(whole, capture_output=True, text=True, env=clean_env(**env), timeout=60)

        assert cli("ps", AGENTCORE_RL_RUNTIME_TOKEN=token).returncode == 0
        assert "this session does not exist" in cli("logs x", AGENTCORE_RL_RUNTIME_TOKEN=token).stderr
        for done in (cli("ps"), cli("ps", AGENTCORE_RL_RUNTIME_TOKEN="stale" * 5)):
            assert done.returncode == 1
            assert "token" in done.stderr
            assert "hint: " in done.stderr
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_terminal_gets_what_a_session_printed_escaped(user: RuntimeUser) -> None:
    session, hostile = new_id(), "\x1b]0;title\x07\x1b[2J"
    user.ask(session, print=hostile)
    live = next(known for known in user.runtime.sessions if known.id == session)
    eventually(lambda: hostile.encode() in live.log.read_bytes())
    command = [CLI, "runtime", "logs", session, "--url", f"http://127.0.0.1:{user.runtime.port}"]
    piped = subprocess.run(command, capture_output=True, env=clean_env(), timeout=60)
    assert hostile.encode() in piped.stdout  # as it is
    shown, terminal = os.openpty()
    with open(shown, "rb", buffering=0) as screen:
        subprocess.run(command, stdout=terminal, env=clean_env(), timeout=60, check=True)
        assert "\\x1b]0;title\\x07\\x1b[2J" in screen.read(10_000).decode()
    os.close(terminal)
