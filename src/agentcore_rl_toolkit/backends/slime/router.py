"""slime's SGLang router as the gateway's engine, and how to abort what its servers still sample."""

from __future__ import annotations

import contextlib
import json
import logging
import time
import urllib.request
from collections.abc import AsyncIterator
from typing import Any, cast

from ...engine.base import EngineInfo, Sampled, SampleRequest
from ...engine.remote.sglang import SglangEngine
from ...errors import EngineError

logger = logging.getLogger(__name__)
_ABORT_SECONDS = 120.0
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores proxies of the environment


class RouterEngine(SglangEngine):
    """SGLang behind slime's router. If the router doesn't list its models, it serves the one in training."""

    def __init__(self, url: str, *, model: str, context_length: int | None = None, timeout: float = 14_400.0) -> None:
        super().__init__(url, timeout=timeout)
        self._default_info = EngineInfo((model,), context_length)
        self.version = 0
        """The newest weights that a server has sampled with: slime counts their transfers to its servers."""
        self.first_version: int | None = None
        """The weights of the first reply that says which."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        async with contextlib.aclosing(cast(Any, super().sample(request))) as parts:
            async for sampled in parts:
                if (sampled.weight_version or "").isdecimal():  # before slime's first update it is a word
                    version = int(sampled.weight_version or 0)
                    self.version = max(self.version, version)
                    self.first_version = version if self.first_version is None else self.first_version
                yield sampled

    async def info(self) -> EngineInfo:
        try:
            self._info = await super().info()
        except EngineError:
            self._info = self._default_info
        return self._info


def router_url(args: Any) -> str:
    """The address of slime's router."""
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}"


def abort_requests(url: str) -> None:
    """Abort the requests that no session waits for any more: slime needs idle servers to take their memory."""
    for worker in _workers(url):
        until, pause = time.monotonic() + _ABORT_SECONDS, 0.05
        _request(f"{worker}/abort_request", {"abort_all": True})
        while _busy(worker) and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, 3.0)
            _request(f"{worker}/abort_request", {"abort_all": True})


def _workers(url: str) -> list[str]:
    answer = _request(f"{url}/workers")
    return [worker["url"] for worker in answer.get("workers", ())] if isinstance(answer, dict) else []


def _busy(worker: str) -> bool:
    answer = _request(f"{worker}/v1/loads?include=core")
    loads = answer.get("loads", [answer]) if isinstance(answer, dict) else answer
    counted = ("num_reqs", "num_total_reqs", "num_running_reqs", "num_waiting_reqs")
    return any(load.get(name) for load in loads or () if isinstance(load, dict) for name in counted)


def _request(url: str, body: dict[str, Any] | None = None) -> Any:
    """A server's answer; None if it doesn't answer or lacks the path."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with _direct.open(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")
    except (OSError, ValueError) as error:
        logger.info("no answer from %s: %s", url, error)
        return None
