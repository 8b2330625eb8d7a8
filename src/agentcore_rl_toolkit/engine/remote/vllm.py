"""vLLM as an engine: token ids over `/v1/completions`.

`mode="generate"` speaks `/inference/v1/generate` instead (vLLM 0.32 with `--enable-scale-out`): the only one that
says which weight versions a sequence was sampled with, and that streams expert routes. Nothing here knows a tokenizer.
"""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import AsyncIterator

import msgspec
import orjson

from ...errors import ConfigError, EngineError
from ..base import EngineInfo, Sampled, SampleRequest
from ..reply_form import structural_tag
from . import vllm_wire as wire
from .framing import DONE
from .http_client import HttpClient
from .payload import encode, settings

NAMES = {
    name: name
    for name in (
        "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "min_tokens",
    )
}  # fmt: skip


class VllmEngine:
    """A vLLM server at `url`.

    `pause_mode` is vLLM's: `wait` lets running requests end, `keep` freezes them until `resume`, `abort` ends them.
    """

    forms = True

    def __init__(
        self,
        url: str,
        *,
        mode: str = "tokens",
        api_key: str | None = None,
        pause_mode: str = "wait",
        timeout: float = 600.0,
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        if mode not in ("tokens", "generate"):
            raise ConfigError(f"vLLM has no mode {mode!r}", hint="one of tokens, generate")
        self.mode = mode
        self.http = HttpClient(url.rstrip("/").removesuffix("/v1"), api_key=api_key, timeout=timeout, ssl=ssl)
        self._pause_mode = pause_mode
        self._context: int | None = None
        self._tells_version = True

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        generate = self.mode == "generate"
        read = wire.generated if generate else wire.completions
        # Streamed completions leave the routes out, so a request for routes is not streamed.
        stream = request.stream and (generate or request.routes_from is None)
        body = await self._body(request, stream)
        seen = False
        try:
            with await self.http.post("/inference/v1/generate" if generate else "/v1/completions", *body) as answer:
                while events := await (answer.events() if stream else answer.whole()):
                    if not stream:
                        events = [wire.without_echo(events[0])]
                    sampled = read([event for event in events if event != DONE], request, self.http.error)
                    if sampled is None:
                        continue
                    seen = True
                    if sampled.finish is not None:
                        await answer.skip()
                        yield sampled
                        return
                    yield sampled
            raise self.http.error("ended its answer without a finish reason")
        except EngineError as e:
            e.sampled_any |= seen
            raise

    async def info(self) -> EngineInfo:
        await self._check_health()
        models = wire.read(wire.MODELS, await self.http.get("/v1/models"), self.http.error).data
        own = [model for model in models if model.parent is None]
        self._context = next((model.max_model_len for model in own if model.max_model_len), None)
        names = [model.id for model in own] + [model.id for model in models if model.parent is not None]
        return EngineInfo(tuple(names), self._context, await self._version())

    async def pause(self) -> None:
        """A server without the endpoint (it comes with VLLM_SERVER_DEV_MODE=1) goes on as before."""
        await self.http.tell(f"/pause?mode={self._pause_mode}", if_there=True)

    async def resume(self) -> None:
        await self.http.tell("/resume", if_there=True)

    async def load_lora(self, name: str, path: str) -> None:
        """Sample from the adapter at `path`, on the server's disk, as the model `name`; replaces one of that name."""
        fields = {"lora_name": name, "lora_path": path, "load_inplace": True}
        await self.http.tell("/v1/load_lora_adapter", orjson.dumps(fields))

    async def unload_lora(self, name: str) -> None:
        await self.http.tell("/v1/unload_lora_adapter", orjson.dumps({"lora_name": name}))

    async def start(self) -> None:
        """Nothing to do: connections are made when they are needed."""

    async def close(self) -> None:
        await self.http.close()

    async def _body(self, request: SampleRequest, stream: bool) -> tuple[bytes, ...]:
        sampling = request.sampling
        fields = settings(sampling, NAMES) | {"max_tokens": await self._limit(request)}
        fields["logprobs"] = sampling.top_logprobs
        if sampling.ignore_eos:
            fields["ignore_eos"] = True
        if sampling.logit_bias:
            fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
        if sampling.json_schema is not None:
            fields["structured_outputs"] = (
                {"json": sampling.json_schema} if sampling.json_schema else {"json_object": True}
            )
        if sampling.form is not None:
            fields["structured_outputs"] = {"structural_tag": structural_tag(sampling.form)}
        if request.routes_from:
            fields["routed_experts_prompt_start"] = request.routes_from
        if self.mode == "generate":
            fields = {"sampling_params": fields}
        else:
            fields |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
        fields["stream"] = stream
        if request.model is not None:
            fields["model"] = request.model
        return encode(fields, "token_ids" if self.mode == "generate" else "prompt", request.prompt)

    async def _limit(self, request: SampleRequest) -> int:
        """How many tokens to ask for: left to itself, vLLM stops after 16."""
        if request.sampling.max_tokens is not None:
            return request.sampling.max_tokens
        if self._context is None:
            await self.info()
        if self._context is None:
            raise self.http.error("does not say its context length, so max_tokens is needed", status=400)
        return max(1, self._context - len(request.prompt))

    async def _check_health(self) -> None:
        """The list of models is also given by a server whose engine has died."""
        try:
            await self.http.get("/health")
        except EngineError as e:
            if e.status != 404:
                raise

    async def _version(self) -> str | None:
        if self._tells_version:
            try:
                told = msgspec.json.decode(await self.http.get("/weight_info"))
                return str(told["weight_version"])
            except (EngineError, msgspec.DecodeError, KeyError, TypeError):
                self._tells_version = False
        return None
