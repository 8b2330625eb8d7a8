"""Who may use the page's port, and the headers that stop a rollout's text from running as code.

Pages of other sites never may (`http_guard.py`). On loopback, the processes of the user who started the server may; all
others need the key. The URL that `agentcore-rl ui` prints carries it once; a cookie that no script can read keeps it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable

from aiohttp import web

from ...common.http_guard import GuardRefusal, RequestGuard, is_loopback, local_address
from ...common.socket_owner import is_own_process

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class PageAccess:
    """The rules of one port."""

    def __init__(self, *, host: str, port: int, allow_hosts: Iterable[str] = ()) -> None:
        self.key = secrets.token_urlsafe(24)
        self.cookie = f"agentcore_rl_ui_{port}"
        self._trusts_own = is_loopback(host)
        self._guard = RequestGuard.listening(host, allow_hosts)

    def foreign(self, request: web.Request) -> GuardRefusal | None:
        """Why a request may not be served whoever sends it; a link from another site may lead to the page itself."""
        headers = {
            name: request.headers[name] for name in ("Host", "Sec-Fetch-Site", "Origin") if name in request.headers
        }
        if request.method == "GET" and request.path == "/" and request.headers.get("Sec-Fetch-Mode") == "navigate":
            headers.pop("Sec-Fetch-Site", None)
        return self._guard.refusal(headers, local_address(request.transport))

    def is_allowed(self, request: web.Request) -> bool:
        """Whether the sender may read runs."""
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        for given in (request.cookies.get(self.cookie), bearer.strip() if scheme.lower() == "bearer" else None):
            if given is not None and self.is_key(given):
                return True
        return self._trusts_own and is_own_process(request.transport)

    def is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self.key.encode())
