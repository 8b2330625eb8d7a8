"""The store on S3 or a compatible server, with announcements on SQS.

boto3 decides endpoints, region and credentials (`AWS_ENDPOINT_URL_S3`, `AWS_DEFAULT_REGION`, roles, …), except that
`AWS_REGION` counts too, which other SDKs read and boto3 doesn't. Retries are ours (`retry.py`), so boto3's are off.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime
import json
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn
from urllib.parse import quote_plus, unquote_plus, urlsplit

from .. import __version__
from ..common.env_file import aws_region
from ..common.object_repr import object_repr
from ..errors import ConfigError, KeyNotFound, ResultUnreadable
from ..types import RolloutId, check_key, check_prefix
from .message_queue import MessageQueue
from .s3_errors import error_code, store_error

logger = logging.getLogger(__name__)

_MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
_TAKEN = frozenset({"412", "PreconditionFailed"})
# Every listing has these fields, even an empty one; boto3 reads an answer without a body as a listing too.
_EVERY_LIST = frozenset({"IsTruncated", "KeyCount", "Name"})
_FEW = 8
"""A listing costs as much as this many reads."""
_QUEUE_HOST = re.compile(r"(?:sqs\.([\w-]+)|([\w-]+)\.queue|queue)\.amazonaws\.com(?:\.cn)?")


class S3Store:
    """Documents in one bucket, under one prefix. Open it with `open_store`."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        queue: str | None = None,
        environ: Mapping[str, str] | None = None,
        s3_environ: Mapping[str, str] | None = None,
    ) -> None:
        if prefix:
            check_key(prefix)
        self._environs = {"s3": environ if s3_environ is None else s3_environ, "sqs": environ}
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._queue = queue
        self._clients: dict[str, Any] = {}
        self.usage = Counter[str]()
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return object_repr(self, self.url)

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def announces(self) -> bool:
        return self._queue is not None

    def prepare(self) -> None:
        # Importing boto3 and reading its service models takes longer than any request.
        with contextlib.suppress(ConfigError):
            self.client("s3")
            if self._queue is not None:
                self.client("sqs")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        name = self._name(key)
        try:
            self.client("s3").put_object(
                Bucket=self._bucket, Key=name, Body=data, ContentType="application/json", IfNoneMatch="*"
            )
        except Exception as error:
            if error_code(error) in _TAKEN:
                return False
            self._fail(error, f"could not store {key!r}")
        return True

    def get(self, key: str, *, limit: int | None = None) -> bytes:
        name = self._name(key)
        try:
            answer = self.client("s3").get_object(Bucket=self._bucket, Key=name)
            size, body = answer.get("ContentLength", 0), b""
            if limit is None or size <= limit:
                body = bytes(answer["Body"].read(None if limit is None else limit + 1))
                if len(body) < size:
                    raise ConnectionError(f"it was cut off after {len(body):,} of {size:,} bytes")
                if limit is None or len(body) <= limit:
                    with self._lock:
                        self.usage["bytes_read"] += len(body)
                    return body
            answer["Body"].close()
        except Exception as error:
            if error_code(error) in _MISSING:
                raise KeyNotFound(f"nothing is stored under {key!r} in {self.url}") from None
            self._fail(error, f"could not read {key!r}")
        raise ResultUnreadable(f"{key!r} in {self.url} is {max(size, len(body)):,} bytes long; {limit:,} are read")

    def exists(self, key: str) -> bool:
        name = self._name(key)
        try:
            self.client("s3").head_object(Bucket=self._bucket, Key=name)
        except Exception as error:
            if error_code(error) in _MISSING:
                return False
            self._fail(error, f"could not look for {key!r}")
        return True

    def keys(self, prefix: str = "") -> Iterator[str]:
        name = self._prefix + check_prefix(prefix)
        try:
            for page in self.client("s3").get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=name):
                if not page.keys() & _EVERY_LIST:
                    raise ConnectionError("the listing was cut off")
                for entry in page.get("Contents", ()):
                    yield entry["Key"].removeprefix(self._prefix)
        except Exception as error:
            self._fail(error, f"could not list {prefix!r}")

    def find(self, keys: Sequence[str]) -> tuple[set[str], list[str]]:
        """List from the first missing key on, and from the next one after each page: old results are skipped over.

        A page that settles only a few keys took more than reads of these would have, so the rest is left to be read.
        """
        there, left = set[str](), list(keys)
        prefix = os.path.commonprefix([keys[0], keys[-1]]) if keys else ""  # noqa: RUF071 - not of paths
        while len(left) > _FEW:
            names, is_last = self._page_from(left[0], prefix)
            if any(one > other for one, other in pairwise(names)):
                return set(), list(keys)  # the server has its own order
            settled = len(left) if is_last else bisect.bisect_right(left, names[-1]) if names else 0
            there.update(set(left[:settled]).intersection(names))
            left = left[settled:]
            if settled <= _FEW:
                break
        return there, left

    def _page_from(self, key: str, prefix: str) -> tuple[list[str], bool]:
        """The keys from `key` on, as many as one request lists, and whether these are the last."""
        before = self._name(key)[:-1]  # of what sorts between this and the key, nothing is a result
        try:
            page = self.client("s3").list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix + prefix, StartAfter=before
            )
            if not page.keys() & _EVERY_LIST:
                raise ConnectionError("the listing was cut off")
        except Exception as error:
            self._fail(error, f"could not list {prefix!r}")
        names = [entry["Key"].removeprefix(self._prefix) for entry in page.get("Contents", ())]
        return names, not page.get("IsTruncated")

    def announce(self, key: str) -> None:
        if self._queue is None:
            return
        record = {
            "eventSource": "agentcore-rl-toolkit",
            "eventName": "ObjectCreated:Put",
            "eventTime": datetime.datetime.now(datetime.timezone.utc).isoformat(),
            "s3": {
                "bucket": {"name": self._bucket},
                "object": {"key": quote_plus(self._name(key), safe="/")},
            },
        }
        try:
            self._messages.send(json.dumps({"Records": [record]}))
        except Exception as error:
            self._fail(error, f"could not announce {key!r} on {self._queue}")

    def announcements(self, exp_id: str, wait_seconds: float, wanted: Callable[[str], bool] | None = None) -> list[str]:
        if self._queue is None:
            raise ConfigError(f"{self.url} has no queue for announcements", hint="name one with sqs_url")

        def mine(body: str) -> list[str] | None:
            named = self._results_in(body)
            found = [key for exp, key in named if exp == exp_id and (wanted is None or wanted(key))]
            return found if found or not named else None

        try:
            return self._messages.receive(wait_seconds, mine)
        except Exception as error:
            self._fail(error, f"could not read announcements from {self._queue}")

    def stop_waiting(self) -> None:
        """Nothing: SQS may have given a message to a reader already, so it has to take the answer."""

    def close(self) -> None:
        with self._lock:
            while self._clients:
                self._clients.popitem()[1].close()

    def _results_in(self, body: str) -> list[tuple[str | None, str]]:
        """Each result that a message names: its experiment, None if it is in another store, and its key.

        S3's own event notifications have the same format.
        """
        try:
            objects = [record["s3"] for record in json.loads(body)["Records"]]
            names = [(o["bucket"]["name"], unquote_plus(o["object"]["key"])) for o in objects]
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            logger.warning("a message on %s is not an S3 event about an object; dropped", self._queue)
            return []
        results: list[tuple[str | None, str]] = []
        for bucket, name in names:
            key = name.removeprefix(self._prefix)
            if bucket != self._bucket or not name.startswith(self._prefix):
                results.append((None, name))
            elif (exp_id := _exp_id(key)) is not None:
                results.append((exp_id, key))
            else:
                logger.debug("%r in a message on %s is not a result", name, self._queue)
        return results

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    @cached_property
    def _messages(self) -> MessageQueue:
        return MessageQueue(self._queue or "", lambda: self.client("sqs"))

    def client(self, service: str) -> Any:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        settings: dict[str, Any] = {
            "connect_timeout": 5,
            "read_timeout": 30,
            "max_pool_connections": 50,
            "retries": {"total_max_attempts": 1},
            "user_agent": f"agentcore-rl-toolkit/{__version__}",  # boto3's is made anew for each request
        }
        try:
            with self._lock:  # making clients is not thread-safe
                if service in self._clients:
                    return self._clients[service]
                session = boto3.session.Session(**self._credentials(service))
                where = self._endpoint(service)
                client = self._clients[service] = session.client(service, config=Config(**settings), **where)
                client.meta.events.register(f"before-call.{service}", self._count)
                return client
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"{service} can't be used: {error}", hint="set AWS_REGION and credentials") from error

    def _count(self, model: Any, **_: object) -> None:
        with self._lock:
            self.usage[f"{model.service_model.endpoint_prefix}:{model.name}"] += 1

    def _credentials(self, service: str) -> dict[str, str | None]:
        """Region and credentials: those of a given environment, and a queue's own region."""
        environ = self._environs[service]
        own = self._queue_region if service == "sqs" else None
        if environ is None:
            region = own or aws_region()
            return {"region_name": region} if region else {}
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        region = own or aws_region(environ)
        return {name: environ.get(name.upper()) for name in names} | {"region_name": region}

    def _endpoint(self, service: str) -> dict[str, str | None]:
        """The service's endpoint, where boto3 can't find it: a queue's URL names the queue's host."""
        environ, name = self._environs[service], f"AWS_ENDPOINT_URL_{service.upper()}"
        given = (os.environ if environ is None else environ).get(name)
        queue = urlsplit(self._queue or "") if service == "sqs" and not given else None
        if queue is not None and queue.hostname and _QUEUE_HOST.fullmatch(queue.hostname) is None:
            return {"endpoint_url": f"{queue.scheme}://{queue.netloc}"}
        return {} if environ is None else {"endpoint_url": given}

    @property
    def _queue_region(self) -> str | None:
        """The region in a queue's URL, which boto3 ignores."""
        match = _QUEUE_HOST.fullmatch(urlsplit(self._queue or "").hostname or "")
        return None if match is None else match[1] or match[2] or "us-east-1"

    def _fail(self, error: Exception, what: str) -> NoReturn:
        raise store_error(error, f"{what} in {self.url}") from error


def _exp_id(key: str) -> str | None:
    try:
        return RolloutId.from_key(key).exp_id
    except ValueError:
        return None
