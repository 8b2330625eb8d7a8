"""The gateway's HTTP in production: plain paths such as `/v1/chat/completions`, behind a key, and nothing recorded.

Each call gets its own session, which no other request can reach and which ends with the answer. So this app has no
control API and takes no results, and clients send the whole history instead of continuing a conversation by its id.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from ...errors import GatewayFault
from ..call.core import Core
from ..record.session import Session, SessionSettings
from .gateway_app import App, no_route

_CREDENTIAL = re.compile(r"AWS4-[A-Z0-9-]+ .*?\bCredential=([^/,\s]+)/")
_KEY_HEADERS = ("x-api-key", "x-goog-api-key", "api-key")
_SHARED = {("GET", "health"), ("GET", "metrics")}
_TRAINING_ONLY = "result"


class ProductionApp(App):
    """Routes the requests of agents in production to a `Core`."""

    def __init__(
        self,
        core: Core,
        *,
        keys: Sequence[str],
        settings: SessionSettings | None = None,
        admin_key: str,
        url: Callable[[], str],
        trusts_own_user: bool = False,
    ) -> None:
        """A call needs one of `keys`. `settings` are those of every call: model, sampling, context limit."""
        super().__init__(core, admin_key=admin_key, url=url, trusts_own_user=trusts_own_user)
        self._keys = [key.encode() for key in keys]
        self._settings = settings or SessionSettings(session_id="production")

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path.strip("/")
        if (request.method, path) in _SHARED:
            return await super()._route(request)
        self._check_key(request)
        if path == _TRAINING_ONLY or path.startswith("sessions"):
            raise no_route(request.method, request.path, set())
        return await self._route_agent(request, await self._new_session(), path)

    async def _new_session(self) -> Session:
        """A session for one call. It serves the gateway's one model, under any name that the call asks for."""
        settings = msgspec.structs.replace(self._settings, session_id=secrets.token_hex(12))  # replicas share by it
        session = Session(settings, "", time.time())
        served = await self.core.resolve_model(None, session)
        session.settings = msgspec.structs.replace(settings, model=served)
        return session

    def check_admin(self, request: web.BaseRequest) -> None:
        """Raise a `GatewayFault` unless the request carries a key; production has no separate admin key."""
        self._check_key(request)

    def _check_key(self, request: web.BaseRequest) -> None:
        given = _key_in(request).encode("utf-8", "surrogateescape")
        if not sum(hmac.compare_digest(given, key) for key in self._keys):  # takes as long for each of them
            raise GatewayFault(
                "the request has no valid key" if given else "the request has no key",
                status=401,
                code="invalid_api_key",
                hint="set the client's API key, or MODEL_API_KEY for app.model_endpoint",
            )


def _key_in(request: web.BaseRequest) -> str:
    """The key that a client sent, wherever its API has one; boto3 sends it as its access key id."""
    headers: Any = request.headers
    authorization = headers.get("Authorization", "")
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return str(rest.strip())
    if match := _CREDENTIAL.match(authorization):
        return match[1]
    return next((str(headers[name]) for name in _KEY_HEADERS if name in headers), request.query.get("key", ""))
