"""What the engines for vLLM and SGLang share: their server's models, limits and errors, and reading one reply."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from ...common.object_repr import object_repr
from ...errors import EngineError
from ..base import EngineInfo, EngineLoad, Sampled, SampleRequest
from .framing import DONE
from .http_client import API_KEY, HttpClient, error_message
from .payload import decode
from .server_metrics import read_load


class ServedModel(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None
    """Of a LoRA adapter: the model it adapts."""


class ServedModels(msgspec.Struct):
    data: list[ServedModel]


SERVED_MODELS = msgspec.json.Decoder(ServedModels)


class ServerEngine:
    forms = True

    def __init__(self, url: str, *, api_key: str | None = None, timeout: float = 600.0) -> None:
        self.http = HttpClient(url, api_key=api_key or os.environ.get(API_KEY), timeout=timeout)
        self._info: EngineInfo | None = None

    def __repr__(self) -> str:
        return object_repr(self, self.http.url)

    async def start(self) -> None:
        """Nothing to do: the client connects when it sends."""

    async def close(self) -> None:
        await self.http.close()

    async def info(self) -> EngineInfo:
        models = self.decode(SERVED_MODELS, await self.http.get("/v1/models")).data
        own = [model for model in models if model.parent is None]
        names = [model.id for model in own] + [model.id for model in models if model.parent is not None]
        length = next((model.max_model_len for model in own if model.max_model_len), None)
        self._info = EngineInfo(tuple(names), length, await self._weight_version())
        return self._info

    async def load(self) -> EngineLoad | None:
        """How busy the server is; None if it has no metrics (SGLang needs `--enable-metrics`)."""
        response = await self.http.send("GET", "/metrics")
        with response:
            if response.status != 200:
                return None
            return read_load((await response.read()).decode("utf-8", "replace"))

    async def _weight_version(self) -> str | None:
        """The version that the server reports; None if it reports none."""
        return None

    async def cached_info(self) -> EngineInfo:
        return self._info or await self.info()

    async def max_tokens(self, request: SampleRequest, reserved: int = 0) -> int:
        """How many tokens to ask for. Without a number, vLLM stops after 16 and SGLang after 128."""
        if request.sampling.max_tokens is not None:
            return request.sampling.max_tokens
        length = (await self.cached_info()).context_length
        if length is None:
            raise self.http.error("does not report its context length, so max_tokens is needed", status=400)
        return max(1, length - len(request.prompt) - reserved)

    def decode(self, decoder: msgspec.json.Decoder[Any], data: bytes, *, sampled_any: bool = False) -> Any:
        """Decode a reply, raising the error it may contain."""
        try:
            reply = decode(decoder, data)
        except msgspec.DecodeError as e:
            raise self.http.error(f"answered with something unexpected: {e}: {data[:200]!r}") from e
        error = getattr(reply, "error", None)
        if error is not None:
            status = 400 if isinstance(error, dict) and error.get("code") == 400 else 502
            raise self.http.error(f"failed: {error_message(data)}", status=status, sampled_any=sampled_any)
        return reply

    async def exchange(
        self, path: str, body: tuple[bytes, ...], stream: bool, read: Callable[[list[bytes]], Sampled | None]
    ) -> AsyncGenerator[Sampled, None]:
        """Send a request and `read` the events of its reply, up to the one with a finish reason."""
        seen = False
        try:
            with await self.http.post(path, *body) as response:
                while events := await (response.read_events() if stream else response.read_as_event()):
                    sampled = read([event for event in events if event != DONE])
                    if sampled is None:
                        continue
                    seen = True
                    if sampled.finish is not None:
                        await response.drain()
                    yield sampled
                    if sampled.finish is not None:
                        return
            raise self.http.error("ended its answer without a finish reason")
        except EngineError as e:
            e.sampled_any |= seen
            raise
