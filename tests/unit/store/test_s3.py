"""S3's and SQS's answers, from a server that gives any."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, HTTPClientError, ParamValidationError, ResponseStreamingError

from agentcore_rl_toolkit import __version__
from agentcore_rl_toolkit.errors import KeyNotFound, StoreError, StoreForbidden, StoreMisconfigured, StoreUnavailable
from agentcore_rl_toolkit.store import Store, open_store
from agentcore_rl_toolkit.store.s3_errors import store_error


class AnsweringServer:
    """Gives every request the same answer, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.code, self.requests = 200, "", []  # type: int, str, list[tuple[str, str, str]]
        self.cut: str | None = None
        self.body: str | None = None
        self.agent = ""
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.requests.append((self.command, self.headers["Host"], self.path))
                server.agent = self.headers["User-Agent"]
                if server.cut == "before":
                    self.close_connection = True
                    return
                body = f"<Error><Code>{server.code}</Code><Message>told so</Message></Error>" if server.code else ""
                body = body if server.body is None else server.body
                self.send_response(server.status)
                self.send_header("Content-Type", "application/xml")
                if server.status == 301:
                    self.send_header("x-amz-bucket-region", "eu-west-3")
                self.send_header("Content-Length", str(len(body) + (100 if server.cut == "inside" else 0)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body.encode())
                self.close_connection = server.cut == "inside"

            do_GET = do_PUT = do_HEAD = answer

            def log_message(self, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.port = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture(scope="module")
def server() -> Iterator[AnsweringServer]:
    server = AnsweringServer()
    yield server
    server.close()


@pytest.fixture
def answers(server: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> AnsweringServer:
    """The server, with this process's AWS settings pointing at it."""
    server.status, server.code, server.cut, server.body, server.requests = 200, "", None, None, []
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.port}")
    return server


def calls(store: Store) -> list[Callable[[], Any]]:
    key = "exp/row/s.json"
    return [lambda: store.put_if_absent(key, b"x"), lambda: store.get(key), lambda: list(store.keys("exp/"))]


PASSING_STATUSES = (408, 409, 425, 429, 500, 502, 503, 504)


PASSING_CODES = ("ConditionalRequestConflict", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException")


FOR_GOOD = [
    (400, "InvalidRequest"),
    (401, "Whatever"),
    (403, "AccessDenied"),
    (404, "NoSuchBucket"),
    (405, "MethodNotAllowed"),
    (501, "NotImplemented"),
]


def test_requests_name_this_package(answers: AnsweringServer) -> None:
    answers.body = "<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated></ListBucketResult>"
    next(iter(open_store("bucket").keys("exp/")), None)
    assert answers.agent.startswith(f"agentcore-rl-toolkit/{__version__}")


def test_temporary_and_final_answers_are_distinguished(answers: AnsweringServer) -> None:
    cases = {(status, code): True for status in PASSING_STATUSES for code in ("Whatever", "")}
    cases |= {(400, code): True for code in PASSING_CODES} | dict.fromkeys(FOR_GOOD, False)
    store = open_store("some-bucket")
    for (answers.status, answers.code), passing in cases.items():
        for call in calls(store):
            with pytest.raises(StoreError, match="in s3://some-bucket: ") as caught:
                call()
            assert isinstance(caught.value, StoreUnavailable) is passing, (answers.status, answers.code)
            assert not isinstance(caught.value, KeyNotFound)
    assert len(answers.requests) == 3 * len(cases)  # trying again is not boto3's business


def test_an_answer_that_is_cut_off_may_pass(answers: AnsweringServer) -> None:
    store = open_store("some-bucket")
    answers.cut = "before"
    for call in calls(store):
        with pytest.raises(StoreUnavailable):
            call()
    answers.cut, answers.body = "inside", "{}"
    for limit in (None, 1000):
        with pytest.raises(StoreUnavailable):
            store.get("exp/row/s.json", limit=limit)


@pytest.mark.parametrize("cut", [None, "inside"])  # with the length of what is left, and with another
@pytest.mark.parametrize("body", ["", "<ListBucketResult><Name>some-buc", "<html></html>"])
def test_a_list_that_is_cut_off_is_not_an_empty_one(answers: AnsweringServer, body: str, cut: str | None) -> None:
    answers.body, answers.cut = body, cut
    with pytest.raises(StoreUnavailable, match=r"could not list 'exp/' in s3://some-bucket: "):
        list(open_store("some-bucket").keys("exp/"))


@pytest.mark.parametrize(
    "inside", ["<Name>some-bucket</Name>", "<KeyCount>0</KeyCount>", "<IsTruncated>false</IsTruncated>"]
)
def test_a_list_may_be_empty(answers: AnsweringServer, inside: str) -> None:
    answers.body = f"<ListBucketResult>{inside}</ListBucketResult>"
    assert list(open_store("some-bucket").keys("exp/")) == []


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (HTTPClientError(error="x"), True),
        (EndpointConnectionError(endpoint_url="x"), True),
        (ResponseStreamingError(error="x"), True),
        (ConnectionResetError("x"), True),
        (ParamValidationError(report="x"), False),
        (ValueError("x"), False),
    ],
)
def test_temporary_and_final_boto3_errors_are_distinguished(error: Exception, passing: bool) -> None:
    translated = store_error(error, "could not store 'k'")
    assert isinstance(translated, StoreUnavailable) is passing
    assert isinstance(translated, StoreError)
    assert str(translated) == f"could not store 'k': {error}"


@pytest.mark.parametrize("code", ["PreconditionFailed", ""])
def test_a_key_that_is_taken(answers: AnsweringServer, code: str) -> None:
    answers.status, answers.code = 412, code
    assert open_store("some-bucket").put_if_absent("exp/row/s.json", b"x") is False


@pytest.mark.parametrize("code", ["NoSuchKey", "NotFound", ""])
def test_a_key_that_is_missing(answers: AnsweringServer, code: str) -> None:
    answers.status, answers.code = 404, code
    store = open_store("some-bucket")
    assert store.exists("exp/row/s.json") is False
    with pytest.raises(KeyNotFound, match=r"exp/row/s\.json"):
        store.get("exp/row/s.json")


def test_missing_credentials_are_a_setting_to_change(answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/no/such/file")
    with pytest.raises(StoreMisconfigured, match="hint: set AWS credentials"):
        open_store("some-bucket").put_if_absent("exp/row/s.json", b"x")


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (404, "NoSuchBucket", StoreMisconfigured, "create the bucket"),
        (301, "PermanentRedirect", StoreMisconfigured, "set AWS_REGION to the bucket's region, eu-west-3"),
        (400, "AuthorizationHeaderMalformed", StoreMisconfigured, "set AWS_REGION to the bucket's region"),
        (403, "InvalidAccessKeyId", StoreMisconfigured, "aws sts get-caller-identity"),
        (403, "SignatureDoesNotMatch", StoreMisconfigured, "aws sts get-caller-identity"),
        (400, "ExpiredToken", StoreMisconfigured, "aws sts get-caller-identity"),
        (403, "AccessDenied", StoreForbidden, ""),
        (400, "InvalidRequest", StoreError, ""),
    ],
)
def test_what_has_to_be_changed_is_named(
    answers: AnsweringServer, status: int, code: str, kind: type[StoreError], hint: str
) -> None:
    answers.status, answers.code = status, code
    for call in calls(open_store("some-bucket")):
        with pytest.raises(StoreError, match=f"(?s)some-bucket.*told so.*{hint}") as caught:
            call()
        assert type(caught.value) is kind


def test_the_region_of_a_bucket_is_named(answers: AnsweringServer) -> None:
    answers.status = 400
    answers.body = (
        "<Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong</Message><Region>eu-west-3</Region></Error>"
    )
    with pytest.raises(StoreMisconfigured, match="hint: set AWS_REGION to the bucket's region, eu-west-3"):
        open_store("some-bucket").get("exp/row/s.json")


@pytest.mark.parametrize(
    ("queue", "environ", "region", "endpoint"),
    [
        ("https://sqs.eu-west-3.amazonaws.com/1/q", None, "eu-west-3", "https://sqs.eu-west-3.amazonaws.com"),
        ("https://eu-west-3.queue.amazonaws.com/1/q", None, "eu-west-3", "https://sqs.eu-west-3.amazonaws.com"),
        ("https://queue.amazonaws.com/1/q", None, "us-east-1", "https://sqs.us-east-1.amazonaws.com"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", None, "cn-north-1", "https://sqs.cn-north-1.amazonaws.com.cn"),
        ("https://sqs.eu-west-3.amazonaws.com/1/q", "http://127.0.0.1:4", "eu-west-3", "http://127.0.0.1:4"),
        ("http://127.0.0.1:5/1/q", None, "us-west-2", "http://127.0.0.1:5"),
        ("http://127.0.0.1:5/1/q", "http://127.0.0.1:4", "us-west-2", "http://127.0.0.1:4"),
        ("q", None, "us-west-2", "https://sqs.us-west-2.amazonaws.com"),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_a_queue_is_where_its_url_says(
    answers: AnsweringServer,
    monkeypatch: pytest.MonkeyPatch,
    queue: str,
    environ: str | None,
    region: str,
    endpoint: str,
    own: bool,
) -> None:
    if environ is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", environ)
    elsewhere = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "ap-east-1"}
    settings: dict[str, Any] = {"s3_environ": elsewhere} if own else {"environ": dict(os.environ)}
    sqs = open_store("some-bucket", sqs_url=queue, **settings).client("sqs")  # type: ignore[attr-defined]
    assert (sqs.meta.region_name, sqs.meta.endpoint_url) == (region, endpoint)
    assert "X-Amz-Credential=test%2F" in sqs.generate_presigned_url("list_queues")


def test_the_bucket_is_in_the_path_of_a_server_of_our_own(
    answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://localhost:{answers.port}")
    assert open_store("s3://some-bucket/a/prefix").put_if_absent("exp/row/s.json", b"x")
    expected = ("PUT", f"localhost:{answers.port}", "/some-bucket/a/prefix/exp/row/s.json")
    assert answers.requests == [expected]


def test_the_bucket_is_in_the_host_on_aws(answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    client = open_store("some-bucket").client("s3")  # type: ignore[attr-defined]
    url = client.generate_presigned_url("get_object", Params={"Bucket": "some-bucket", "Key": "k"})
    assert url.startswith("https://some-bucket.s3.")


@pytest.mark.parametrize("default", [None, "ap-east-1"])
def test_the_region_that_hints_ask_for_is_used(
    answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch, default: str | None
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    if default is not None:
        monkeypatch.setenv("AWS_DEFAULT_REGION", default)
    monkeypatch.setenv("AWS_REGION", "eu-west-3")  # boto3 doesn't read it
    store = open_store("some-bucket", sqs_url="my-queue")
    clients = [store.client(service) for service in ("s3", "sqs")]  # type: ignore[attr-defined]
    assert [client.meta.region_name for client in clients] == ["eu-west-3", "eu-west-3"]


def test_settings_that_boto3_refuses_are_named(answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not a url")
    with pytest.raises(StoreError, match=r"s3 can't be used: .*\nhint: set AWS_REGION"):
        open_store("some-bucket").put_if_absent("exp/row/s.json", b"x")
