"""A directory store as a sandboxed session sees it: its own results only, through the runtime's proxy.

A session of the local runtime can't see the host's files. The runtime passes the proxy's URL in the session's
environment (`AGENTCORE_RL_STORE_PROXY`), and `open_store` then uses the proxy for directories. A session can store,
read and announce its own results in the store that its invoke named, and nothing else.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn
from urllib.parse import quote, urlsplit

from ..errors import (
    ConfigError,
    KeyInvalid,
    KeyNotFound,
    ResultUnreadable,
    StoreError,
    StoreForbidden,
    StoreUnavailable,
)
from ..types import check_key, check_prefix
from .base import FolderStore

STORE_PROXY_VARIABLE = "AGENTCORE_RL_STORE_PROXY"


class SessionStore(FolderStore):
    """One session's results in a directory of the host."""

    def __init__(self, proxy: str, root: str) -> None:
        super().__init__(root)
        self._proxy = urlsplit(proxy)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._request("PUT", check_key(key), data)[0] == 201

    def get(self, key: str, *, limit: int | None = None) -> bytes:
        status, body = self._request("GET", check_key(key))
        if status == 404:
            raise KeyNotFound(f"nothing is stored under {key!r} in {self.url}")
        if limit is not None and len(body) > limit:
            raise ResultUnreadable(f"{key!r} in {self.url} is {len(body):,} bytes long; {limit:,} are read")
        return body

    def exists(self, key: str) -> bool:
        return self._request("HEAD", check_key(key))[0] == 200

    def keys(self, prefix: str = "") -> Iterator[str]:
        _, body = self._request("GET", "", query=f"&prefix={quote(check_prefix(prefix), safe='')}")
        yield from body.decode().splitlines()

    def announce(self, key: str) -> None:
        self._request("POST", check_key(key))

    def find(self, keys: Sequence[str]) -> tuple[set[str], list[str]]:
        return set(), list(keys)

    def announcements(self, exp_id: str, wait_seconds: float, wanted: Callable[[str], bool] | None = None) -> list[str]:
        raise ConfigError("a session can't read announcements", hint="read them outside the sandbox")

    def _request(self, method: str, key: str, data: bytes = b"", query: str = "") -> tuple[int, bytes]:
        path = f"{self._proxy.path}/store/{quote(key, safe='/')}?store={quote(self.url, safe='')}{query}"
        connection = http.client.HTTPConnection(self._proxy.hostname or "", self._proxy.port, timeout=30)
        try:
            connection.request(method, path, data)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(f"the proxy of {self.url} did not answer for {key!r}: {error}") from error
        finally:
            connection.close()
        if status not in (200, 201, 204, 404, 409):
            self._fail(status, body.decode(errors="replace"), key)
        return status, body

    def _fail(self, status: int, text: str, key: str) -> NoReturn:
        kinds = {400: KeyInvalid, 403: StoreForbidden}
        kind = StoreUnavailable if status >= 500 else kinds.get(status, StoreError)
        raise kind(f"{key!r} in {self.url}: {text}")
