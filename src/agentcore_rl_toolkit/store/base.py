"""The store's interface, and the string that chooses an implementation.

A store keeps immutable documents under keys. A document is never overwritten, so the first result of a rollout is its
only one. Announcements tell readers about new keys and save them polling; losing one loses nothing, because readers can
list the store.

All calls block, and are safe from many threads and processes at once. They raise `StoreUnavailable` when another try
may help (see `retry.py`), any other `StoreError` when it won't (`StoreMisconfigured` until a setting changes,
`StoreForbidden` without a permission), and `KeyInvalid` for a key that could leave the store's prefix.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from ..common.object_repr import object_repr
from ..errors import ConfigError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")


class Store(Protocol):
    """Where results land: `S3Store`, `LocalStore`, and `SessionStore` in a sandbox."""

    usage: Counter[str]
    """Requests to AWS by operation, such as `s3:GetObject`, and `bytes_read`."""

    @property
    def url(self) -> str:
        """The string that opens this store again."""

    @property
    def announces(self) -> bool:
        """Whether announcements reach readers; if not, readers have to list."""

    def prepare(self) -> None:
        """Do slow preparations early, such as imports. Contacts nothing and raises nothing."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Store `data` durably unless `key` is taken. True if it was stored, False if `key` was taken."""

    def get(self, key: str, *, limit: int | None = None) -> bytes:
        """The document under `key`; raises `KeyNotFound`, or `ResultUnreadable` for more than `limit` bytes."""

    def exists(self, key: str) -> bool:
        """Whether a document is stored under `key`."""

    def keys(self, prefix: str = "") -> Iterator[str]:
        """All keys that start with `prefix`, in the server's order."""

    def find(self, keys: Sequence[str]) -> tuple[set[str], list[str]]:
        """Which of `keys`, given in order, are stored, and those of which only a read can tell.

        Other stored keys cost next to nothing: the store lists only where that is cheaper than reading.
        """

    def announce(self, key: str) -> None:
        """Tell readers that the result `key` is stored."""

    def announcements(self, exp_id: str, wait_seconds: float, wanted: Callable[[str], bool] | None = None) -> list[str]:
        """Keys of one experiment announced since the last call; waits up to `wait_seconds` for the first.

        Each announcement goes to one reader. It may arrive twice, or get lost. Announcements that `wanted` refuses
        stay for other readers.
        """

    def stop_waiting(self) -> None:
        """Let calls of `announcements` on other threads return soon, because the store is about to be closed."""

    def close(self) -> None:
        """Release connections; afterwards the store is unusable."""


class FolderStore:
    """What the stores in a directory share: they announce, and hold nothing between calls."""

    announces = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.usage = Counter[str]()

    def __repr__(self) -> str:
        return object_repr(self, self.url)

    def prepare(self) -> None:
        """Needs no preparation."""

    def stop_waiting(self) -> None:
        """Needs nothing where `announcements` doesn't wait."""

    def close(self) -> None:
        """Nothing to release."""


def open_store(
    url: str,
    *,
    sqs_url: str | None = None,
    environ: Mapping[str, str] | None = None,
    s3_environ: Mapping[str, str] | None = None,
) -> Store:
    """Open the store that `url` names; contacts nothing yet.

    AWS settings come from the process's environment, or from `environ` if given, or from `s3_environ` for S3 only. A
    queue's URL decides in which region, or on which host, the queue is.

    | url | store |
    |---|---|
    | `my-bucket`, `s3://my-bucket`, `s3://my-bucket/a/prefix` | S3, announced on the SQS queue `sqs_url` if given |
    | `/an/absolute/path`, `file:///an/absolute/path` | a directory, announced inside it |
    """
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(f"a store's name must be a string, not {url!r}", hint=_HINT)
    directory = directory_of(url)
    if directory is not None:
        return _open_directory(directory, url)
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket) or (prefix and not url.startswith("s3://")):
        raise ConfigError(f"{url!r} is not the name of a store", hint=_HINT)
    from .s3 import S3Store

    return S3Store(bucket, prefix.strip("/"), queue=sqs_url, environ=environ, s3_environ=s3_environ)


def absolute_store(url: str) -> str:
    """The store's name, with a relative folder as an absolute one, because other processes have other working
    directories. A folder exists, begins with `.` or `~`, or has a slash that no scheme explains.

    >>> absolute_store("s3://bucket/prefix"), absolute_store("bucket")
    ('s3://bucket/prefix', 'bucket')
    >>> absolute_store("runs/switch") == os.path.abspath("runs/switch")
    True
    """
    if not isinstance(url, str) or "://" in url:
        return url
    if url.startswith((".", "~")) or "/" in url or os.path.isdir(url):
        return os.path.abspath(os.path.expanduser(url))
    return url


def directory_of(url: str) -> str | None:
    """The directory that a store's name means, None if it means a bucket."""
    if not url.startswith("file:"):
        return url if os.path.isabs(url) else None
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"store {url!r} names the host {parts.netloc!r}", hint="write file:///absolute/path")
    return unquote(parts.path)


def check_store(name: str) -> None:
    """Refuse a store whose name is wrong, or a folder that can't be written."""
    store = absolute_store(name)
    open_store(store).close()  # it contacts nothing
    if (folder := directory_of(store)) is not None:
        check_folder(Path(folder), f"results can't be written to {name}", "choose another store")


def check_folder(folder: Path, problem: str, hint: str) -> None:
    """Refuse a folder that can't be written or made, with an error that begins with `problem`."""
    wanted = folder.absolute()
    there = next(path for path in (wanted, *wanted.parents) if os.path.exists(path))  # Path.exists() may refuse to say
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "may not be written to" if there.is_dir() else "is a file"
        raise ConfigError(f"{problem}: {there} {why}", hint=hint)


def buckets_folder() -> str:
    """The folder with the buckets of agents given by path: `agentcore-rl/buckets` in the user's data directory.

    Such an agent runs in a local runtime of the client's, whose S3 keeps each bucket as a folder. The folders outlive
    the runtime, so that an experiment can be resumed.
    """
    home = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(os.path.abspath(home), "agentcore-rl", "buckets")


def bucket_folder(store: str) -> str | None:
    """The folder of the bucket and prefix that `store` names; None if it names a directory.

    >>> bucket_folder("s3://my-bucket/a/prefix") == os.path.join(buckets_folder(), "my-bucket", "a", "prefix")
    True
    """
    if os.path.isabs(store) or store.startswith("file:"):
        return None
    return os.path.join(buckets_folder(), *store.removeprefix("s3://").strip("/").split("/"))


_HINT = "give a bucket name, s3://bucket/prefix, file:///path or an absolute path (relative ones differ per process)"


def _open_directory(path: str, url: str) -> Store:
    if not os.path.isabs(path):
        raise ConfigError(f"store {url!r} is not an absolute path", hint=_HINT)
    from .directory import LocalStore
    from .session_store import STORE_PROXY_VARIABLE, SessionStore

    proxy = os.environ.get(STORE_PROXY_VARIABLE)
    return SessionStore(proxy, path) if proxy else LocalStore(path)
