"""Requests that no client sends on purpose: each gets a 4xx that says what is wrong, and the runtime goes on."""

from __future__ import annotations

import http.client
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from support.agent import rollout
from support.runtime import RuntimeUser, local_runtime, new_id

SESSION = b"X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
AGENT = """
@app.rollout_entrypoint
def invoke_agent(payload):
    return {"said": payload.get("prompt")}
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeUser]:
    folder = tmp_path_factory.mktemp("agent")
    with local_runtime(folder, AGENT, spares=1, stores=[folder.parent]) as user:
        yield user


@pytest.fixture
def session(user: RuntimeUser) -> str:
    user.ask(session_id := new_id(), prompt="hi")
    return session_id


@pytest.fixture(autouse=True)
def nothing_fails_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def exchange(user: RuntimeUser, request: bytes) -> tuple[int, bytes]:
    """Status and answer to exactly these bytes; 0 if the connection was just closed."""
    with socket.create_connection(("127.0.0.1", user.runtime.port), timeout=30) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection, method=request.split(b" ")[0].decode("latin-1"))
        try:
            response.begin()
            return response.status, response.read()
        except http.client.BadStatusLine:
            return 0, b""
        finally:
            response.close()


def head(user: RuntimeUser, target: str | bytes, method: str = "POST", **headers: bytes | str) -> bytes:
    target = target.encode() if isinstance(target, str) else target
    lines = [method.encode() + b" " + target + b" HTTP/1.1", b"Host: localhost"]
    for name, value in headers.items():
        lines.append(name.replace("_", "-").encode() + b": " + (value.encode() if isinstance(value, str) else value))
    return b"\r\n".join(lines) + b"\r\n"


def path(user: RuntimeUser, action: str = "invocations") -> str:
    return f"/runtimes/{quote(user.agent.arn, safe='')}/{action}"


def send(user: RuntimeUser, action: str, body: bytes, session_id: str | bytes, **headers: str) -> tuple[int, Any]:
    given: dict[str, bytes | str] = {SESSION.decode(): session_id, "Content-Length": str(len(body))} | headers
    status, answer = exchange(user, head(user, path(user, action), **given) + b"\r\n" + body)
    return status, json.loads(answer) if answer else None


def assert_invalid(status: int, answer: Any, says: str = "") -> None:
    assert status == 400, answer
    assert answer["__type"] == "ValidationException"
    assert says in answer["message"]


# --- what is in a payload --------------------------------------------------------------------------------------------

NO_TEXT: list[Any] = [[], {}, 1.5, True, ["x"], {"a": ["b"]}, "\0", "a\0b", "\ud800", "/tmp/\0"]
WRONG = {
    "s3_bucket": [*NO_TEXT, 0, 10**400, "file://host/x", "file://["],
    "sqs_url": [*NO_TEXT, 0, "http://[", "http://x:99999/q"],
    "base_url": [*NO_TEXT, 0, "http://[", "http://x:port/v1"],
    "model_id": [*NO_TEXT, 0],
    "exp_id": NO_TEXT,
    "input_id": NO_TEXT,
}


@pytest.mark.parametrize("name", WRONG)
def test_settings_of_a_rollout(user: RuntimeUser, tmp_path: Path, name: str) -> None:
    before = dict(user.runtime.counts)
    for value in WRONG[name]:
        body = json.dumps({"_rollout": rollout(tmp_path) | {name: value}}).encode()
        assert_invalid(*send(user, "invocations", body, new_id()), "_rollout")
    assert user.runtime.counts == before


@pytest.mark.parametrize(
    "body",
    [
        *(b'{"_rollout": []}', b'{"_rollout": "x"}', b'{"_rollout": 7}', b'{"_rollout": ' + b"[" * 200_000),
        *(b"[" * 200_000 + b'"_rollout"', b'{"a": ' * 100_000 + b'"\\u0000"'),
    ],
)
def test_rollouts_that_are_none(user: RuntimeUser, body: bytes) -> None:
    assert_invalid(*send(user, "invocations", body, new_id()))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_settings_are_read_as_the_app_reads_them(user: RuntimeUser, encoding: str) -> None:
    """In whichever encoding they come, and with their names escaped."""
    body = json.dumps({"_rollout": rollout("/nowhere/allowed")}).encode(encoding)
    if encoding == "utf-8-sig":
        body = body.decode("utf-8-sig").replace("_rollout", "\\u005frollout").encode()
    status, answer = send(user, "invocations", body, new_id())
    assert (status, answer["__type"]) == (403, "AccessDeniedException"), answer


@pytest.mark.parametrize("body", [b"", b"{", b"\0", b"\xff\xfe", b"[]", b"null", b"NaN", b'"' + b"x" * 100])
def test_payloads_that_are_the_apps_affair(user: RuntimeUser, session: str, body: bytes) -> None:
    assert send(user, "invocations", body, session)[0] in (200, 424)


# --- ids and headers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "session_id",
    [b"\xff" * 40, "ü" * 40, b"\x80" + b"x" * 40, "x\ty" * 20, "\x7f" * 40, "x" * 32, "x" * 257, "x" * 9000],
)
@pytest.mark.parametrize("action", ["invocations", "stopruntimesession", "commands"])
def test_session_ids(user: RuntimeUser, action: str, session_id: str | bytes) -> None:
    given: dict[str, bytes | str] = {SESSION.decode(): session_id, "Content-Length": "21"}
    status, _ = exchange(user, head(user, path(user, action), **given) + b'\r\n{"command": "true"}  ')
    assert status == 400


@pytest.mark.parametrize(
    "name", ["Content-Type", "Accept", "X-Amzn-Custom", "baggage", "Mcp-Session-Id", "traceparent"]
)
@pytest.mark.parametrize("value", [b"\xff\xfe", b"x" * 8193, b"x" * 9000, b"\x00", b"a\rb"])
def test_headers_for_the_app(user: RuntimeUser, session: str, name: str, value: bytes) -> None:
    given: dict[str, bytes | str] = {SESSION.decode(): session, "Content-Length": "2", name: value}
    assert exchange(user, head(user, path(user), **given) + b"\r\n{}")[0] == 400


@pytest.mark.parametrize(
    ("name", "most"), [("Content-Type", 256), ("Accept", 256), ("traceparent", 128), ("tracestate", 512)]
)
def test_headers_that_aws_finds_too_long(user: RuntimeUser, session: str, name: str, most: int) -> None:
    for length, status in ((most, 200), (most + 1, 400)):
        given: dict[str, bytes | str] = {SESSION.decode(): session, "Content-Length": "2", name: b"x" * length}
        assert exchange(user, head(user, path(user), **given) + b"\r\n{}")[0] == status


def test_credentials_that_are_no_text(user: RuntimeUser) -> None:
    for value in (b"Bearer \xff\xfe", b"Bearer " + b"x" * 5000, b"AWS4-HMAC-SHA256 Credential=\xff/x, Signature=\xff"):
        status, _ = exchange(user, head(user, "/metrics", "GET", Authorization=value) + b"\r\n")
        assert status in (200, 403)  # any AWS credentials will do, for our own processes


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"{",
            b"[]",
            b"null",
            b"7",
            b'"x"',
            b"{}",
            b"\xff",
            b"[" * 200_000,
            b'{"command": ["x"]}',
            b'{"command": 1}',
        ),
        *(b'{"command": ""}', b'{"command": "a\\u0000b"}', b'{"command": "\\ud800"}', b'{"command": null}'),
        *(
            b'{"command": "true", "timeout": %s}' % t
            for t in (b"0", b"-1", b"3601", b"1.5", b'"1"', b"true", b"1e999", b"{}")
        ),
        b'{"command": "true", "timeout": ' + b"9" * 5000 + b"}",
        b'{"command": "' + b"x" * 65537 + b'"}',
    ],
)
def test_commands(user: RuntimeUser, session: str, body: bytes) -> None:
    assert_invalid(*send(user, "commands", body, session))


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"clientToken": 7}', b"[" * 200_000])
def test_stops(user: RuntimeUser, session: str, body: bytes) -> None:
    assert_invalid(*send(user, "stopruntimesession", body, session))
    assert user.ask(session, prompt="still there") == {"said": "still there"}


# --- paths and queries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target"),
    [
        *(
            ("GET", f"/logs/x?offset={text}")
            for text in ("abc", "-1", "1e3", "9" * 30, "9" * 5000, "%00", "", "%D9%A1")
        ),
        *(
            ("GET", target)
            for target in ("/logs/%00", "/logs/%ff", "/logs/%2e%2e%2f", "/logs/", "/sessions/%00", "/sessions/x")
        ),
        *(
            ("GET", target)
            for target in ("/metrics/%00", "/%00", "/%ff/%ff", "/a-bucket/%00", "/a-bucket/%ed%a0%80", "//", "/../..")
        ),
        *(
            ("GET", f"/a-bucket?list-type=2&{query}")
            for query in ("prefix=%00", "continuation-token=%00", "max-keys=x", "%ff=%ff")
        ),
        *(
            ("PUT", target)
            for target in ("/a-bucket/%00", "/a-bucket/../x", "/A%00", "/a-bucket/.hidden", "/a-bucket//x")
        ),
        *(
            ("POST", f"/runtimes/{name}/invocations")
            for name in ("", "%00", "%ff", "%2e%2e", "x" * 4000, "arn%3A%3A%3A")
        ),
        *(("POST", target) for target in ("/runtimes", "/runtimes/", "/runtimes//", "/runtimes/x/y/z/invocations")),
        *(("OPTIONS", target) for target in ("*", "/")),
        *((method, "/runtimes/x/invocations") for method in ("GET", "PUT", "TRACE", "NONSENSE", "PRI")),
        ("GET", "http://evil.example/metrics"),
        ("CONNECT", "evil.example:80"),
    ],
)
def test_targets(user: RuntimeUser, session: str, method: str, target: str) -> None:
    target = target.replace("/logs/x", f"/logs/{session}")
    status, answer = exchange(user, head(user, target, method, Content_Length="0") + b"\r\n")
    assert status < 500 or (status == 501 and b"<Code>NotImplemented</Code>" in answer), (status, answer)
    if "offset=" in target:
        assert status == 400, answer


def test_an_offset_behind_the_end_of_a_log(user: RuntimeUser, session: str) -> None:
    status, answer = exchange(user, head(user, f"/logs/{session}?offset=999999999", "GET") + b"\r\n")
    assert (status, answer) == (200, b"")


# --- bodies ----------------------------------------------------------------------------------------------------------

BODIES = [
    {"Content-Length": "-1"},
    {"Content-Length": "abc"},
    {"Content-Length": "9" * 40},
    {"Content-Length": "100000002"},
    {"Content-Length": "5", "Transfer-Encoding": "chunked"},
    {"Transfer-Encoding": "nonsense"},
    {"Transfer-Encoding": "chunked", "_": "zz\r\n{}\r\n0\r\n\r\n"},
    {"Transfer-Encoding": "chunked", "_": "-1\r\n{}\r\n0\r\n\r\n"},
    {"Transfer-Encoding": "chunked", "_": "2\r\n{}0\r\n\r\n"},
    {"Transfer-Encoding": "chunked", "_": "f" * 40 + "\r\n"},
    {"Transfer-Encoding": "chunked", "Content-Encoding": "gzip", "_": "8\r\nnot gzip\r\n0\r\n\r\n"},
    {"Content-Encoding": "gzip", "Content-Length": "8", "_": "not gzip"},
    {"Content-Encoding": "deflate", "Content-Length": "8", "_": "not zlib"},
    {"Content-Encoding": "br", "Content-Length": "8", "_": "not brot"},
]


@pytest.mark.parametrize("headers", BODIES)
@pytest.mark.parametrize("action", ["invocations", "commands", "stopruntimesession", "ws", "s3"])
def test_bodies(user: RuntimeUser, session: str, action: str, headers: dict[str, str]) -> None:
    given: dict[str, bytes | str] = {SESSION.decode(): session} | {k: v for k, v in headers.items() if k != "_"}
    method, target = ("PUT", "/a-bucket/a/key") if action == "s3" else ("POST", path(user, action))
    if action == "s3" and headers.get("Content-Length") == "100000002":
        pytest.skip("an object may be that large")
    status, answer = exchange(user, head(user, target, method, **given) + b"\r\n" + headers.get("_", "").encode())
    assert status in (400, 501 if action == "s3" else 404 if action == "ws" else 400), (status, answer)


def test_a_request_that_breaks_off(user: RuntimeUser, session: str) -> None:
    """Nobody is there to be told, and nothing happens."""
    for action in ("invocations", "commands"):
        with socket.create_connection(("127.0.0.1", user.runtime.port), timeout=30) as connection:
            given: dict[str, bytes | str] = {SESSION.decode(): session, "Content-Length": "1000"}
            connection.sendall(head(user, path(user, action), **given) + b"\r\n{")
    assert user.ask(session, prompt="still there") == {"said": "still there"}
