"""The store seam: what a store can do, and the one string that chooses it.

A store keeps immutable documents under keys. What is there is never overwritten, so the first result of a rollout
is its only one. Announcements say "this key is there now"; they are hints that save polling, and losing one loses
nothing, because the store itself is the truth.

All calls block and are safe from many threads and processes at once. They raise `StoreUnavailable` when trying
again may help (see `retry.py`), any other `StoreError` when it won't (`StoreMisconfigured` before a setting is changed,
`StoreForbidden` without a permission), and `KeyInvalid` for a key that could leave the store's prefix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Protocol
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")


class Store(Protocol):
    """Where results land. Two implementations: `S3Store` and `LocalStore`."""

    @property
    def url(self) -> str:
        """The string that opens this store again."""

    @property
    def announces(self) -> bool:
        """Whether `announce` reaches anybody; if not, readers have to list."""

    def prepare(self) -> None:
        """Get ready, so that the first call is quick; contacts nothing, and what is wrong shows later."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store `data` durably unless `key` is taken. True if it was stored, False if something was there."""

    def get(self, key: str, *, limit: int | None = None) -> bytes:
        """What is stored under `key`; `KeyNotFound` if nothing is, `ResultUnreadable` if it has over `limit` bytes."""

    def exists(self, key: str) -> bool:
        """Whether something is stored under `key`."""

    def keys(self, prefix: str = "") -> Iterator[str]:
        """All keys that start with `prefix`; their order is the server's."""

    def announce(self, key: str) -> None:
        """Tell readers that the result `key` is there now."""

    def announcements(self, exp_id: str, wait_seconds: float) -> list[str]:
        """Keys of one experiment announced since the last call; waits up to `wait_seconds` for the first.

        Each announcement goes to one reader. It may come twice, and it may get lost.
        """

    def close(self) -> None:
        """Release connections and watches. The store can't be used afterwards."""


def open_store(
    url: str,
    *,
    sqs_url: str | None = None,
    environ: Mapping[str, str] | None = None,
    s3_environ: Mapping[str, str] | None = None,
) -> Store:
    """Open the store that `url` names; contacts nothing yet.

    AWS settings come from the process's environment as boto3 reads them, or from `environ` instead; those of S3 alone
    from `s3_environ`. A queue that is given by its URL is looked for in the region, or on the host, that the URL names.

    | url | store |
    |---|---|
    | `my-bucket`, `s3://my-bucket`, `s3://my-bucket/a/prefix` | S3, announced on the SQS queue `sqs_url` if given |
    | `/an/absolute/path`, `file:///an/absolute/path` | a directory, announced inside it |
    """
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(f"a store is named by a string, not {url!r}", hint=_HINT)
    directory = directory_of(url)
    if directory is not None:
        return _local(directory, url)
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket) or (prefix and not url.startswith("s3://")):
        raise ConfigError(f"{url!r} names no store", hint=_HINT)
    from .s3 import S3Store

    return S3Store(bucket, prefix.strip("/"), queue=sqs_url, environ=environ, s3_environ=s3_environ)


def directory_of(url: str) -> str | None:
    """The directory that the name of a store means, None if it names no directory."""
    if not url.startswith("file:"):
        return url if os.path.isabs(url) else None
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"store {url!r} names the host {parts.netloc!r}", hint="write file:///absolute/path")
    return unquote(parts.path)


_HINT = "give a bucket name, s3://bucket/prefix, file:///path or an absolute path (relative ones differ per process)"


def _local(path: str, url: str) -> Store:
    if not os.path.isabs(path):
        raise ConfigError(f"store {url!r} is not an absolute path", hint=_HINT)
    from .directory import LocalStore
    from .session_store import DOOR_VARIABLE, DoorStore

    door = os.environ.get(DOOR_VARIABLE)
    return DoorStore(door, path) if door else LocalStore(path)
