"""The S3 server over a directory: our own S3 store on it, and a raw boto3 client for each operation."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import ipaddress
import os
import ssl
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from aiohttp import web
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import KeyNotFound, S3Error, StoreError
from agentcore_rl_toolkit.runtime.local.server.local_s3 import LocalS3, decode_body
from agentcore_rl_toolkit.store import Store, open_store

BUCKET = "a-bucket"


@contextmanager
def serving(root: Path, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve `root` on a free loopback port, on its own thread; gives the URL."""
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_route("*", r"/{path:[\s\S]*}", LocalS3(root).handle)
    runner = web.AppRunner(app)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        return int(runner.addresses[0][1])

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    port = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "s3"


@pytest.fixture
def url(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with serving(root) as url:
        settings = {"ENDPOINT_URL_S3": url, "ACCESS_KEY_ID": "any", "SECRET_ACCESS_KEY": "any", "REGION": "us-west-2"}
        for name, value in settings.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        yield url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(BUCKET)
    yield store
    store.close()


@pytest.fixture
def s3(url: str) -> Iterator[Any]:
    client = boto3.client("s3", region_name="us-west-2", config=Config(retries={"total_max_attempts": 1}))
    yield client
    client.close()


def code_of(call: Any, **params: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call(**params)
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def request(url: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


# Our own store on it: what tests/contract/test_store.py asks of a store.


def test_the_first_put_wins(store: Store) -> None:
    assert store.put_if_absent("exp/row/s.json", b"first") is True
    assert store.put_if_absent("exp/row/s.json", b"second") is False
    assert store.get("exp/row/s.json") == b"first"
    assert store.exists("exp/row/s.json")


def test_of_many_writers_at_once_one_wins(url: str) -> None:
    stores = [open_store(BUCKET) for _ in range(16)]
    start = threading.Barrier(16)

    def put(i: int) -> bool:
        start.wait()
        return stores[i].put_if_absent("exp/row/race.json", b"x" * 1000 + bytes([i]))

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(put, range(16)))
    assert won.count(True) == 1
    assert stores[0].get("exp/row/race.json")[-1] == won.index(True)
    for store in stores:
        store.close()


def test_what_is_not_there(store: Store) -> None:
    store.put_if_absent("exp/row/s.json", b"{}")
    assert not store.exists("exp/row/none.json")
    assert not store.exists("exp/row")  # a folder is not an object
    with pytest.raises(KeyNotFound):
        store.get("exp/row/none.json")
    with pytest.raises(KeyNotFound):
        store.get("exp/row/s.json/below")
    assert list(store.keys("nothing/here")) == []


def test_keys_are_found_by_prefix(store: Store) -> None:
    keys = ["a/row-1/s1.json", "a/row-1/s2.json", "a/row-10/s1.json", "a.json", "b/row-1/s1.json", "ab/r/s.json"]
    for key in keys:
        store.put_if_absent(key, b"{}")
    assert list(store.keys()) == sorted(keys)
    assert list(store.keys("a/row-1/")) == ["a/row-1/s1.json", "a/row-1/s2.json"]
    assert list(store.keys("a")) == sorted(key for key in keys if key.startswith("a"))


def test_a_prefix_within_the_bucket(url: str, root: Path) -> None:
    store = open_store(f"s3://{BUCKET}/team/run one")
    assert store.put_if_absent("exp/row/s.json", b"1")
    assert (root / BUCKET / "team/run one/exp/row/s.json").read_bytes() == b"1"
    assert list(store.keys()) == ["exp/row/s.json"]
    store.close()


@pytest.mark.parametrize(
    "name", ["Grüße", "世界", "a b", "a+b", "a%2Fb", "a:b", "x" * 200, "a?b#c&d=e", "'\"`$(id)<&>"]
)
def test_unusual_ids_round_trip(store: Store, name: str) -> None:
    key = f"exp/{name}/s.json"
    assert store.put_if_absent(key, b"1")
    assert store.get(key) == b"1"
    assert list(store.keys(f"exp/{name}")) == [key]


# Each operation, as boto3 sends it.


def test_buckets(s3: Any, root: Path) -> None:
    assert s3.list_buckets()["Buckets"] == []
    s3.head_bucket(Bucket=BUCKET)  # every bucket exists
    for _ in range(2):
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.head_bucket(Bucket=BUCKET)
    (root / "Not A Bucket").mkdir()
    (found,) = s3.list_buckets()["Buckets"]
    assert found["Name"] == BUCKET
    assert found["CreationDate"].tzinfo is not None


def test_a_bucket_comes_with_its_first_object(s3: Any) -> None:
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"x")
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == [BUCKET]


def test_an_object_is_put_read_and_overwritten(s3: Any, root: Path) -> None:
    for body in (b"first", b"", os.urandom(3_000_000)):
        put = s3.put_object(Bucket=BUCKET, Key="exp/k.json", Body=body)
        got = s3.get_object(Bucket=BUCKET, Key="exp/k.json")
        assert got["Body"].read() == body
        head = s3.head_object(Bucket=BUCKET, Key="exp/k.json")
        assert head["ContentLength"] == got["ContentLength"] == len(body)
        assert head["ContentType"] == got["ContentType"] == "application/json"
        assert head["ETag"] == got["ETag"] == put["ETag"]
        age = datetime.datetime.now(datetime.timezone.utc) - head["LastModified"]
        assert abs(age) < datetime.timedelta(minutes=1)
    assert [p.name for p in root.rglob("*") if p.is_file()] == ["k.json"]  # no draft is left


def test_overwriting_leaves_a_reader_its_object(s3: Any, root: Path) -> None:
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"old")
    with (root / BUCKET / "k").open("rb") as reader:
        s3.put_object(Bucket=BUCKET, Key="k", Body=b"new")
        assert reader.read() == b"old"
    got = s3.get_object(Bucket=BUCKET, Key="k")
    assert (got["Body"].read(), got["ContentType"]) == (b"new", "binary/octet-stream")


def test_another_content_has_another_etag(s3: Any) -> None:
    etags = {s3.put_object(Bucket=BUCKET, Key="k", Body=body)["ETag"] for body in (b"1", b"2", b"3")}
    assert len(etags) == 3


def test_a_file_can_be_uploaded(s3: Any, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"from a file")
    s3.upload_file(str(tmp_path / "f"), BUCKET, "k")
    s3.download_file(BUCKET, "k", str(tmp_path / "g"))
    assert (tmp_path / "g").read_bytes() == b"from a file"


def test_a_conditional_put(s3: Any) -> None:
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"1", IfNoneMatch="*")
    assert code_of(s3.put_object, Bucket=BUCKET, Key="k", Body=b"2", IfNoneMatch="*") == ("PreconditionFailed", 412)
    assert code_of(s3.put_object, Bucket=BUCKET, Key="k", Body=b"2", IfNoneMatch='"e"') == ("NotImplemented", 501)
    assert s3.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"1"


@pytest.mark.parametrize(
    ("wanted", "got", "where"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=7-99", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-99", b"0123456789", None),
        ("bytes=0-0", b"0", "bytes 0-0/10"),
        ("bytes=0-1,3-4", b"0123456789", None),
        ("lines=1-2", b"0123456789", None),
    ],
)
def test_a_range_of_an_object(s3: Any, wanted: str, got: bytes, where: str | None) -> None:
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"0123456789")
    answer = s3.get_object(Bucket=BUCKET, Key="k", Range=wanted)
    assert answer["Body"].read() == got
    assert answer.get("ContentRange") == where
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == (206 if where else 200)


@pytest.mark.parametrize("wanted", ["bytes=10-", "bytes=5-4", "bytes=-0"])
def test_a_range_outside_is_refused(s3: Any, wanted: str) -> None:
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"0123456789")
    assert code_of(s3.get_object, Bucket=BUCKET, Key="k", Range=wanted) == ("InvalidRange", 416)


def test_deleting(s3: Any) -> None:
    s3.put_object(Bucket=BUCKET, Key="a/k", Body=b"x")
    s3.delete_object(Bucket=BUCKET, Key="a")  # a folder stays
    assert s3.get_object(Bucket=BUCKET, Key="a/k")["Body"].read() == b"x"
    for _ in range(2):
        s3.delete_object(Bucket=BUCKET, Key="a/k")
    assert code_of(s3.head_object, Bucket=BUCKET, Key="a/k") == ("404", 404)
    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0


def test_what_is_missing_is_named(s3: Any) -> None:
    s3.create_bucket(Bucket=BUCKET)
    for key in ("k", "<&>"):
        assert code_of(s3.get_object, Bucket=BUCKET, Key=key) == ("NoSuchKey", 404)
    assert code_of(s3.get_object, Bucket="another", Key="k") == ("NoSuchKey", 404)
    assert s3.list_objects_v2(Bucket="another")["KeyCount"] == 0


KEYS = ["a", "b/1", "b/2/x", "b/2/y", "b.", "c d/+%", "c/ü", "c/世", "c/\U0001f600", "c/\uffee", "z"]


@pytest.fixture
def full(s3: Any) -> Any:
    for key in KEYS:
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    return s3


def listed(s3: Any, **params: Any) -> tuple[list[str], list[str]]:
    """Keys and common prefixes of all pages."""
    keys: list[str] = []
    prefixes: list[str] = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, **params):
        keys += [entry["Key"] for entry in page.get("Contents", [])]
        prefixes += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        assert page["KeyCount"] == len(page.get("Contents", [])) + len(page.get("CommonPrefixes", []))
        assert page["KeyCount"] <= page["MaxKeys"]
    return keys, prefixes


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_listing_is_in_the_order_of_the_bytes_and_paged(full: Any, size: int) -> None:
    page = {"PaginationConfig": {"PageSize": size}}
    in_order = sorted(KEYS, key=str.encode)
    assert listed(full, **page) == (in_order, [])
    assert listed(full, Prefix="b/", **page) == (["b/1", "b/2/x", "b/2/y"], [])
    assert listed(full, Delimiter="/", **page) == (["a", "b.", "z"], ["b/", "c d/", "c/"])
    assert listed(full, Delimiter="/", Prefix="b/", **page) == (["b/1"], ["b/2/"])
    assert listed(full, StartAfter="b/2/x", **page)[0] == in_order[in_order.index("b/2/y") :]
    assert listed(full, Delimiter="1", Prefix="b/", **page) == (["b/2/x", "b/2/y"], ["b/1"])
    assert listed(full, Delimiter="2/", Prefix="b/2/", **page) == (["b/2/x", "b/2/y"], [])


def test_a_page_ends_within_keys_that_end_like_the_delimiter(s3: Any) -> None:
    for key in ("ax", "axb", "axc"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"")
    page = {"PaginationConfig": {"PageSize": 1}}
    assert listed(s3, Delimiter="x", Prefix="ax", **page) == (["ax", "axb", "axc"], [])


def test_a_listing_tells_size_time_and_etag(full: Any) -> None:
    (entry,) = full.list_objects_v2(Bucket=BUCKET, Prefix="c/ü")["Contents"]
    head = full.head_object(Bucket=BUCKET, Key="c/ü")
    assert (entry["Size"], entry["ETag"], entry["LastModified"]) == (4, head["ETag"], head["LastModified"])


def test_the_limits_of_a_listing(full: Any) -> None:
    first = full.list_objects_v2(Bucket=BUCKET, MaxKeys=2)
    assert first["IsTruncated"]
    assert full.list_objects_v2(Bucket=BUCKET, MaxKeys=len(KEYS))["IsTruncated"] is False
    none = full.list_objects_v2(Bucket=BUCKET, MaxKeys=0)
    assert (none["KeyCount"], none["IsTruncated"]) == (0, False)
    assert full.list_objects_v2(Bucket=BUCKET, MaxKeys=5000)["MaxKeys"] == 1000
    assert code_of(full.list_objects_v2, Bucket=BUCKET, ContinuationToken="???") == ("InvalidArgument", 400)
    for prefix in ("../", "/", ".", "a//"):
        assert full.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["KeyCount"] == 0


def test_a_listing_without_url_encoding(full: Any, url: str) -> None:
    full.put_object(Bucket=BUCKET, Key="<&>", Body=b"")
    status, body = request(url, "GET", f"/{BUCKET}?list-type=2&delimiter=%26")
    assert status == 200
    tree = ElementTree.fromstring(body)
    space = "{http://s3.amazonaws.com/doc/2006-03-01/}"
    assert [e.text for e in tree.iter(f"{space}Key")] == sorted(KEYS, key=str.encode)
    assert [e.findtext(f"{space}Prefix") for e in tree.iter(f"{space}CommonPrefixes")] == ["<&"]
    assert request(url, "GET", f"/{BUCKET}?list-type=2&max-keys=x")[0] == 400


# What is refused.


@pytest.mark.parametrize(
    "key", ["../up", "a/../../up", "a//b", ".hidden", "a/.hidden", "x" * 300, "a/" * 510 + "a", "a\nb"]
)
def test_keys_that_leave_the_bucket_are_refused(s3: Any, root: Path, key: str) -> None:
    s3.create_bucket(Bucket=BUCKET)
    assert code_of(s3.put_object, Bucket=BUCKET, Key=key, Body=b"x") == ("InvalidArgument", 400)
    assert code_of(s3.get_object, Bucket=BUCKET, Key=key) == ("InvalidArgument", 400)
    assert code_of(s3.delete_object, Bucket=BUCKET, Key=key) == ("InvalidArgument", 400)
    assert [p for p in root.parent.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("path", ["/..", "/%2e%2e/x", "/Upper", "/ab", "/.new/x", "/a_b"])
def test_invalid_bucket_names_are_refused(url: str, path: str) -> None:
    for method in ("GET", "PUT"):
        status, body = request(url, method, path, b"x")
        assert status == 400
        assert b"<Code>InvalidBucketName</Code>" in body


def test_a_path_that_is_not_utf8_is_refused(url: str) -> None:
    status, body = request(url, "PUT", f"/{BUCKET}/%ff", b"x")
    assert (status, b"InvalidURI" in body) == (400, True)


def test_a_key_cannot_be_a_file_and_a_folder(s3: Any, store: Store) -> None:
    s3.put_object(Bucket=BUCKET, Key="a/b", Body=b"x")
    assert code_of(s3.put_object, Bucket=BUCKET, Key="a", Body=b"x") == ("InvalidRequest", 400)
    assert code_of(s3.put_object, Bucket=BUCKET, Key="a", Body=b"x", IfNoneMatch="*") == ("InvalidRequest", 400)
    assert code_of(s3.put_object, Bucket=BUCKET, Key="a/b/c", Body=b"x") == ("InvalidRequest", 400)
    with pytest.raises(StoreError, match="folder"):
        store.put_if_absent("a", b"x")


def test_anything_else_is_not_implemented(s3: Any) -> None:
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"x")
    source = {"Bucket": BUCKET, "Key": "k"}
    for call, params in [
        (s3.list_objects, {}),
        (s3.delete_bucket, {}),
        (s3.get_bucket_location, {}),
        (s3.delete_objects, {"Delete": {"Objects": [{"Key": "k"}]}}),
        (s3.copy_object, {"Key": "k2", "CopySource": source}),
        (s3.create_multipart_upload, {"Key": "k2"}),
        (s3.put_object, {"Key": "k2", "Body": b"x", "Metadata": {"a": "b"}}),
        (s3.put_object, {"Key": "k2", "Body": b"x", "ContentEncoding": "x-mine"}),
        (s3.put_object, {"Key": "k2", "Body": b"x", "Tagging": "a=b"}),
        (s3.put_object, {"Key": "k", "Body": b"y", "IfMatch": '"e"'}),
        (s3.get_object, {"Key": "k", "IfMatch": '"e"'}),
        (s3.get_object, {"Key": "k", "VersionId": "1"}),
        (s3.get_object_tagging, {"Key": "k"}),
    ]:
        assert code_of(call, Bucket=BUCKET, **params) == ("NotImplemented", 501)
    with pytest.raises(ClientError, match=r"this server supports ListBuckets.*DeleteObject"):
        s3.delete_bucket(Bucket=BUCKET)
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET)["Contents"]] == ["k"]
    assert s3.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"x"


def test_a_presigned_url_works(s3: Any, url: str) -> None:
    signed = s3.generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": "k"})
    assert request(url, "PUT", signed.removeprefix(url), b"by URL")[0] == 200
    assert s3.get_object(Bucket=BUCKET, Key="k")["Body"].read() == b"by URL"


# Bodies in chunks: boto3 sends them over TLS, other SDKs over plain HTTP too.


def test_what_boto3_sends_over_tls__is_decoded(root: Path, tmp_path: Path) -> None:
    certificate = tmp_path / "certificate.pem"
    certificate.write_bytes(self_signed())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    with serving(root, context) as url:
        s3 = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-west-2",
            aws_access_key_id="any",
            aws_secret_access_key="any",
            verify=str(certificate),
        )
        sent: list[dict[str, Any]] = []
        s3.meta.events.register("before-send.s3.PutObject", lambda request, **_: sent.append(dict(request.headers)))
        for size in (0, 1, 3_000_000):
            body = os.urandom(size)
            s3.put_object(Bucket=BUCKET, Key="k", Body=body)
            assert s3.get_object(Bucket=BUCKET, Key="k")["Body"].read() == body
        s3.close()
    assert {request["X-Amz-Content-SHA256"] for request in sent} == {b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"}


def self_signed() -> bytes:
    """A certificate for 127.0.0.1 and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + secret


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), st.booleans())
def test_chunks_are_put_together(chunks: list[bytes], signed: bool) -> None:
    mark = b";chunk-signature=" + b"0" * 64 if signed else b""
    body = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), mark, chunk) for chunk in chunks)
    last = b"0" + mark + b"\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    headers = {"X-Amz-Content-SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"}
    assert decode_body(body + last, headers) == b"".join(chunks)
    assert decode_body(body + last, {"Content-Encoding": "aws-chunked"}) == b"".join(chunks)
    assert decode_body(body, {}) == body
    for cut in (body, body[:-1], b"-5\r\nx"):
        with pytest.raises(S3Error, match="last chunk"):
            decode_body(cut, headers)


def test_a_body_cut_short_is_refused(s3: Any, url: str) -> None:
    status, body = request(url, "PUT", f"/{BUCKET}/k", b"5\r\nabc", Content_Encoding="aws-chunked")
    assert (status, b"IncompleteBody" in body) == (400, True)
    assert code_of(s3.head_object, Bucket=BUCKET, Key="k") == ("404", 404)
