"""A small S3 server over a directory, so that code written for S3 runs on a laptop: set `AWS_ENDPOINT_URL_S3` to it.

    <root>/<bucket>/<key>    one file per object; names that start with a dot are drafts, never objects

It supports the operations in `SUPPORTED`, path-style, and answers `NotImplemented` to all others and to properties
that files can't keep (metadata, encodings, tags). It refuses keys that `check_key` refuses, and a key that would be a
file and a folder at once (`a` beside `a/b`). An object's type follows from its name. A bucket's first object creates
it. `access.py` decides who may use it; signatures are not checked.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

from aiohttp import web

from ....errors import KeyInvalid, S3Error, StoreError, StoreUnavailable
from ....store.directory import LocalStore
from ....types import check_key
from .access import UNREADABLE

SUPPORTED = (
    "ListBuckets, CreateBucket, HeadBucket, ListObjectsV2, PutObject (with If-None-Match: *), GetObject (with one "
    "range), HeadObject and DeleteObject"
)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_LIST = frozenset(
    {"list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type"}
)
_SIGNATURE = frozenset({"AWSAccessKeyId", "Expires", "Signature", "x-id"})
_UNKEPT = re.compile(r"x-amz-(meta-.*|copy-source.*|tagging)|if-(match|unmodified-since)", re.IGNORECASE)
_CHUNK_HEADER = re.compile(rb"([0-9a-fA-F]{1,16})(;[^\r\n]*)?\r\n")
_LARGEST_OBJECT = 1 << 30
_SMALLEST_CHUNK, _SMALL_CHUNKS = 8192, 1000
"""S3 refuses smaller chunks, except the last; here a body may have some."""
_NO_FILE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class ObjectStat(NamedTuple):
    """An object's properties."""

    size: int
    modified: float
    etag: str

    @classmethod
    def of(cls, stat: os.stat_result) -> ObjectStat:
        # With a dash, as in the ETags of multipart uploads: clients don't compare those with an MD5.
        return cls(stat.st_size, stat.st_mtime, f'"{stat.st_mtime_ns:x}{stat.st_ino:x}-{stat.st_size:x}"')


class LocalS3:
    """Buckets as folders under `root`."""

    def __init__(self, root: Path) -> None:
        self._root = Path(root).resolve()

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a request; for a catch-all route."""
        try:
            return await self._answer(request)
        except S3Error as error:
            return s3_error(error.status, error.code, error)
        except KeyInvalid as error:
            return s3_error(400, "InvalidArgument", error)
        except UNREADABLE as error:
            return s3_error(400, "IncompleteBody", error)
        except StoreUnavailable as error:
            return s3_error(503, "ServiceUnavailable", error)
        except StoreError as error:
            return s3_error(400, "InvalidRequest", error)

    async def _answer(self, request: web.Request) -> web.Response:
        bucket, key = _names(request.rel_url.raw_path)
        level = "object" if key else "bucket" if bucket else "service"
        _check_extras(request, _LIST if (level, request.method) == ("bucket", "GET") else frozenset())
        match level, request.method:
            case "service", "GET":
                return _xml("ListAllMyBucketsResult", await asyncio.to_thread(self._buckets))
            case "bucket", "PUT":
                await asyncio.to_thread((self._root / bucket).mkdir, parents=True, exist_ok=True)
                return web.Response()
            case "bucket", "HEAD":
                return web.Response()
            case "bucket", "GET" if request.query.get("list-type") == "2":
                return _xml("ListBucketResult", await asyncio.to_thread(self._list, bucket, request.query))
            case "object", "PUT":
                data = decode_body(await _read(request), request.headers)
                etag = await self.put(bucket, key, data, only_if_absent=_only_if_absent(request))
                return web.Response(headers={"ETag": etag})
            case "object", "GET" | "HEAD":
                wanted = request.headers.get("Range", "")
                return await asyncio.to_thread(self._get, bucket, key, wanted, request.method == "GET")
            case "object", "DELETE":
                await asyncio.to_thread(self._delete, bucket, key)
                return web.Response(status=204)
        raise _not_implemented(f"{request.method} {request.raw_path}")

    async def put(self, bucket: str, key: str, data: bytes, *, only_if_absent: bool) -> str:
        """Store an object, whole at once, and return its ETag."""
        if not _BUCKET.fullmatch(bucket):
            raise S3Error(f"{bucket!r} can't be the name of a bucket", status=400, code="InvalidBucketName")
        return await asyncio.to_thread(self._put, bucket, key, data, only_if_absent)

    def _buckets(self) -> str:
        folders = sorted(self._root.iterdir()) if self._root.is_dir() else []
        return _tag("Buckets", *(
            _tag("Bucket", _tag("Name", folder.name), _tag("CreationDate", _time(folder.stat().st_ctime)))
            for folder in folders
            if folder.is_dir() and _BUCKET.fullmatch(folder.name)
        ))  # fmt: skip

    def _put(self, bucket: str, key: str, data: bytes, only_if_absent: bool) -> str:
        folder = self._root / bucket
        path = folder / key  # LocalStore checks the key
        if not LocalStore(folder).put_if_absent(key, data):
            if path.is_dir():
                raise S3Error(f"{key!r} is a folder here, with objects below it", status=400, code="InvalidRequest")
            if only_if_absent:
                raise S3Error(f"{key!r} is there already", status=412, code="PreconditionFailed")
            drafts, draft = folder / ".replacing", uuid.uuid4().hex
            LocalStore(drafts).put_if_absent(draft, data)
            os.replace(drafts / draft, path)
        return ObjectStat.of(path.stat()).etag

    def _get(self, bucket: str, key: str, wanted: str, with_body: bool) -> web.Response:
        path = self._root / bucket / check_key(key)
        try:
            with open(path, "rb") as file:
                stat = ObjectStat.of(os.fstat(file.fileno()))
                start, end = _range(wanted, stat.size)
                file.seek(start)
                body = file.read(end - start) if with_body else None
        except _NO_FILE:
            raise S3Error(f"nothing is stored under {key!r}", status=404, code="NoSuchKey") from None
        headers = {
            "Accept-Ranges": "bytes",
            "Content-Length": str(end - start),
            "Content-Type": "application/json" if key.endswith(".json") else "binary/octet-stream",
            "ETag": stat.etag,
            "Last-Modified": formatdate(stat.modified, usegmt=True),
        }
        if end - start == stat.size:
            return web.Response(body=body, headers=headers)
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{stat.size}"
        return web.Response(body=body, headers=headers, status=206)

    def _delete(self, bucket: str, key: str) -> None:
        path = self._root / bucket / check_key(key)
        if path.is_file():
            path.unlink(missing_ok=True)

    def _list(self, bucket: str, query: Mapping[str, str]) -> str:
        folder, prefix, delimiter = self._root / bucket, query.get("prefix", ""), query.get("delimiter", "")
        if not query.get("max-keys", "1000").isdecimal():
            raise S3Error(f"max-keys is {query['max-keys']!r}, not a number", status=400, code="InvalidArgument")
        limit = min(1000, int(query.get("max-keys", "1000")))
        after, skipped = query.get("start-after", ""), ""
        if "continuation-token" in query:
            after, skipped = _from_token(query["continuation-token"])
        found = list(islice(_entries(folder, prefix, delimiter, after, skipped), limit + 1))
        page = found[:limit]

        def name(tag: str, value: str) -> str:
            return _tag(tag, quote(value, safe="/") if query.get("encoding-type") == "url" else escape(value))

        out = [_tag("Name", bucket), name("Prefix", prefix), _tag("MaxKeys", str(limit))]
        out += [name("Delimiter", delimiter)] if delimiter else []
        out += [name("StartAfter", query["start-after"])] if "start-after" in query else []
        out += [_tag("EncodingType", "url")] if query.get("encoding-type") == "url" else []
        out += [_tag("KeyCount", str(len(page))), _tag("IsTruncated", "true" if len(found) > limit > 0 else "false")]
        out += [_tag("NextContinuationToken", _to_token(*page[-1]))] if len(found) > limit > 0 else []
        for key, stat in page:
            if stat is None:
                out.append(_tag("CommonPrefixes", name("Prefix", key)))
            else:
                time, size = _tag("LastModified", _time(stat.modified)), _tag("Size", str(stat.size))
                parts = time, _tag("ETag", stat.etag), size, _tag("StorageClass", "STANDARD")
                out.append(_tag("Contents", name("Key", key), *parts))
        return "".join(out)


def _entries(
    folder: Path, prefix: str, delimiter: str, after: str, skipped: str
) -> Iterator[tuple[str, ObjectStat | None]]:
    """Keys after `after` with their properties, and common prefixes up to the delimiter with None; in order."""
    common = None
    try:
        for key in LocalStore(folder).keys(prefix):
            if key <= after or (skipped and key.startswith(skipped)):
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if not found:
                try:
                    yield key, ObjectStat.of((folder / key).stat())
                except _NO_FILE:  # deleted meanwhile
                    continue
            elif prefix + head + found != common:
                common = prefix + head + found
                yield common, None
    except KeyInvalid:  # no key can have such a prefix
        return


def _to_token(name: str, stat: ObjectStat | None) -> str:
    return base64.urlsafe_b64encode(f"{'p' if stat is None else 'k'}{name}".encode()).decode()


def _from_token(token: str) -> tuple[str, str]:
    """The key after which a listing continues, and the common prefix whose keys it skips."""
    try:
        last = base64.urlsafe_b64decode(token).decode()
    except ValueError:
        last = ""
    if last[:1] == "k":
        return last[1:], ""
    if last[:1] == "p":
        return last[1:], last[1:]
    raise S3Error("the continuation token is not one of ours", status=400, code="InvalidArgument")


def _names(path: str) -> tuple[str, str]:
    try:
        bucket, key = (unquote(part, errors="strict") for part in path[1:].partition("/")[::2])
    except UnicodeDecodeError:
        raise S3Error(f"{path} is not UTF-8", status=400, code="InvalidURI") from None
    if bucket and not _BUCKET.fullmatch(bucket):
        raise S3Error(f"{bucket!r} can't be the name of a bucket", status=400, code="InvalidBucketName")
    return bucket, key


def _check_extras(request: web.Request, known: frozenset[str]) -> None:
    """Refuse unsupported parameters and headers; presigned requests carry their signature in the query."""
    for name in request.query:
        if name not in known | _SIGNATURE and not name.lower().startswith("x-amz-"):
            raise _not_implemented(f"{request.method} with ?{name}")
    for name in request.headers:
        if _UNKEPT.fullmatch(name):
            raise _not_implemented(f"the header {name}")


def _only_if_absent(request: web.Request) -> bool:
    condition = request.headers.get("If-None-Match")
    if condition not in (None, "*"):
        raise _not_implemented("If-None-Match with an ETag")
    return condition == "*"


def decode_body(body: bytes, headers: Mapping[str, str]) -> bytes:
    """The object in a request's body; over TLS, boto3 sends it in chunks with a checksum at the end."""
    encoding = headers.get("Content-Encoding", "")
    if encoding not in ("", "aws-chunked"):
        raise _not_implemented(f"Content-Encoding: {encoding}")
    if not encoding and not headers.get("X-Amz-Content-SHA256", "").startswith("STREAMING-"):
        return body
    chunks: list[bytes] = []
    most = len(body) // _SMALLEST_CHUNK + _SMALL_CHUNKS  # decoding millions would block the runtime for seconds
    at = 0
    while header := _CHUNK_HEADER.match(body, at):
        size, at = int(header[1], 16), header.end()
        if size == 0:
            return b"".join(chunks)
        if len(chunks) == most:
            raise S3Error(f"the body has over {most:,} chunks", status=403, code="InvalidChunkSizeError")
        chunks.append(body[at : at + size])
        at += size + 2
    raise S3Error("the body ends before its last chunk", status=400, code="IncompleteBody")


def _range(wanted: str, size: int) -> tuple[int, int]:
    """Where the wanted bytes start and end; like S3, everything if the header isn't one range."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
    if match is None or match[1] == match[2] == "":
        return 0, size
    if match[1] == "":
        start, end = max(0, size - int(match[2])), size
    else:
        start, end = int(match[1]), min(size, int(match[2] or size) + 1)
    if start >= end:
        raise S3Error(f"{wanted} is outside the {size} bytes of the object", status=416, code="InvalidRange")
    return start, end


def _not_implemented(what: str) -> S3Error:
    return S3Error(f"{what} is not supported; this server supports {SUPPORTED}", status=501, code="NotImplemented")


def s3_error(status: int, code: str, message: object) -> web.Response:
    """An error as S3 writes it."""
    return _xml("Error", _tag("Code", code) + _tag("Message", escape(str(message))), status)


async def _read(request: web.Request) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.content.iter_chunked(1 << 16):
        chunks.append(chunk)
        size += len(chunk)
        if size > _LARGEST_OBJECT:
            raise S3Error(f"the object is over {_LARGEST_OBJECT:,} bytes", status=400, code="EntityTooLarge")
    return b"".join(chunks)


def _xml(root: str, content: str, status: int = 200) -> web.Response:
    space = "" if root == "Error" else ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root}{space}>{content}</{root}>'
    return web.Response(text=text, status=status, content_type="application/xml")


def _tag(name: str, *content: str) -> str:
    return f"<{name}>{''.join(content)}</{name}>"


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
