"""The sessions of a running local runtime and of a gateway, which the user named: listed, read, and stopped.

The runtime's token and the gateway's admin key come from the environment, as for `runtime ps`. They never reach the
page.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from ...errors import ConfigError
from ...gateway.gateway import ADMIN_KEY
from ...runtime.base import SESSION_HEADER, TOKEN_VARIABLE
from ...runtime.local.agent_source import ARN_PREFIX
from .clipped_values import Clipper

_LARGEST = 4 << 20
_TIMEOUT = aiohttp.ClientTimeout(total=10)


class SessionWatch:
    """What runs now at the addresses that were named."""

    def __init__(self, runtime: str | None, gateway: str | None) -> None:
        self._runtime, self._gateway = runtime and runtime.rstrip("/"), gateway and gateway.rstrip("/")

    async def show(self) -> dict[str, Any]:
        """The sessions of both, or why they can't be read."""
        runtime, health, listed = await asyncio.gather(
            self._ask(self._runtime, "/sessions", TOKEN_VARIABLE),
            self._ask(self._gateway, "/health", ADMIN_KEY),
            self._ask(self._gateway, "/sessions", ADMIN_KEY),
        )
        if health is not None and listed is not None:
            health |= {"open": health.pop("sessions", None), **listed}
        return {"runtime": runtime, "gateway": health}

    async def read_log(self, session: str, start: int) -> dict[str, Any]:
        """What a session printed, from a byte on."""
        path = f"/logs/{quote(session, safe='')}?offset={start}"
        data, headers = await self._fetch("GET", self._need_runtime(), path, _bearer(TOKEN_VARIABLE))
        return {"text": data.decode(errors="replace"), "next": int(headers.get("X-Next-Offset", start))}

    async def stop(self, session: str) -> dict[str, Any]:
        url, headers = self._need_runtime(), _bearer(TOKEN_VARIABLE)
        listed = json.loads((await self._fetch("GET", url, "/sessions", headers))[0])["sessions"]
        agent = next((one["agent"] for one in listed if one["session_id"] == session), None)
        if agent is None:
            raise ConfigError(f"no session {session!r} runs at {url}")
        path = f"/runtimes/{quote(ARN_PREFIX + agent, safe='')}/stopruntimesession"
        await self._fetch("POST", url, path, headers | {SESSION_HEADER: session})
        return {"stopped": session}

    async def _ask(self, url: str | None, path: str, secret: str) -> dict[str, Any] | None:
        """The answer at an address, or its problem; None without an address."""
        if url is None:
            return None
        try:
            found = json.loads((await self._fetch("GET", url, path, _bearer(secret)))[0])
        except (ConfigError, ValueError) as error:
            return {"url": url, "problem": str(error)}
        return {"url": url, **Clipper(longest=1_000).clip(found if isinstance(found, dict) else {})}

    def _need_runtime(self) -> str:
        if self._runtime is None:
            raise ConfigError("no runtime was named", hint="agentcore-rl ui --runtime-url URL")
        return self._runtime

    async def _fetch(
        self, method: str, url: str, path: str, headers: Mapping[str, str]
    ) -> tuple[bytes, Mapping[str, str]]:
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as client,
                client.request(method, URL(url + path, encoded=True), headers=headers) as response,
            ):
                data = b""
                async for piece in response.content.iter_chunked(1 << 16):
                    data += piece
                    if len(data) > _LARGEST:
                        raise ConfigError(f"{url}{path} answered more than {_LARGEST} bytes")
                if response.status >= 400:
                    raise ConfigError(f"{url} answered {response.status}: {data[:300].decode(errors='replace')}")
                return data, dict(response.headers)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            raise ConfigError(f"{url} does not answer: {error or type(error).__name__}") from None


def _bearer(variable: str) -> dict[str, str]:
    secret = os.environ.get(variable)
    return {"Authorization": f"Bearer {secret}"} if secret else {}
