"""vLLM as an engine: token ids over `/v1/completions`.

`mode="generate"` uses `/inference/v1/generate` instead (vLLM 0.32 with `--enable-scale-out`): only that one reports the
weight versions of a sequence, and streams expert routes. Prompts with images go there in either mode, because only that
endpoint takes images beside token ids.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing

import msgspec

from ...errors import ConfigError, EngineError
from ..base import EngineInfo, Sampled, SampleRequest
from ..reply_form import structural_tag
from . import vllm_wire as wire
from .payload import encode, merge, named_settings
from .server import ServerEngine
from .vllm_images import VllmImages

NAMES = {
    name: name
    for name in (
        "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "min_tokens",
    )
}  # fmt: skip


class VllmEngine(ServerEngine):
    """A vLLM server at `url`.

    `pause_mode` is vLLM's: `wait` lets running requests end, `keep` freezes them until `resume`, `abort` ends them.
    """

    images = True

    def __init__(
        self,
        url: str,
        *,
        mode: str = "tokens",
        api_key: str | None = None,
        pause_mode: str = "wait",
        timeout: float = 600.0,
    ) -> None:
        if mode not in ("tokens", "generate"):
            raise ConfigError(f"unknown vLLM mode {mode!r}", hint="one of tokens, generate")
        super().__init__(url.rstrip("/").removesuffix("/v1"), api_key=api_key, timeout=timeout)
        self.mode = mode
        self._pause_mode = pause_mode
        self._reports_version = True
        self._images = VllmImages(self.http)

    def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        return self._sample_with_images(request) if request.images else self._sample(request)

    async def _sample_with_images(self, request: SampleRequest) -> AsyncGenerator[Sampled, None]:
        """Send only the hashes of images that the server has, and all of them again if it has dropped one."""
        known = self._images.find_known(request.images)
        try:
            async with aclosing(self._sample(request, known)) as items:
                async for sampled in items:
                    self._images.remember(request.images)
                    yield sampled
            return
        except EngineError as error:
            if not known or error.sampled_any or error.status not in EngineError.ELSEWHERE:
                raise
        self._images.forget(known)
        async with aclosing(self._sample(request)) as items:
            async for sampled in items:
                self._images.remember(request.images)
                yield sampled

    async def _sample(self, request: SampleRequest, known: Collection[str] = ()) -> AsyncGenerator[Sampled, None]:
        generate = self._uses_generate(request)
        # Streamed completions leave the routes out, so a request for routes is not streamed. A reply that an update
        # freezes is streamed: at its end, the server doesn't say which of its tokens are of which weights.
        stream = (request.stream or self._pause_mode == "keep") and (generate or request.routes_from is None)
        path = "/inference/v1/generate" if generate else "/v1/completions"
        body = await self._body(request, stream, known)
        async with aclosing(self.exchange(path, body, stream, lambda events: self._read(events, request))) as items:
            async for sampled in items:
                yield sampled

    def _uses_generate(self, request: SampleRequest) -> bool:
        return self.mode == "generate" or bool(request.images)

    def _read(self, events: list[bytes], request: SampleRequest) -> Sampled | None:
        generate = self._uses_generate(request)
        if not generate and not request.sampling.top_logprobs and (plain := wire.read_plain(events)) is not None:
            return plain
        parts: list[Sampled] = []
        for event in events:
            reply = self.decode(wire.GENERATED if generate else wire.COMPLETION, event)
            for choice in reply.choices[:1]:
                if choice.token_ids is None and not generate:
                    raise self.http.error("returned no token ids\nhint: `return_token_ids` needs vLLM 0.10.2 or newer")
                parts.append((wire.read_generated if generate else wire.read_completion)(choice, request))
            if parts and parts[-1].finish is not None:
                break  # later events don't belong to this sequence
        return merge(parts)

    async def info(self) -> EngineInfo:
        try:  # a server whose engine has died still lists its models
            await self.http.get("/health")
        except EngineError as e:
            if e.status != 404:
                raise
        return await super().info()

    async def pause(self) -> None:
        """Does nothing on a server without the endpoint, which needs VLLM_SERVER_DEV_MODE=1."""
        await self.http.post_command(f"/pause?mode={self._pause_mode}", optional=True)

    async def resume(self) -> None:
        await self.http.post_command("/resume", optional=True)

    async def _body(self, request: SampleRequest, stream: bool, known: Collection[str]) -> tuple[bytes, ...]:
        sampling, generate = request.sampling, self._uses_generate(request)
        fields = named_settings(sampling, NAMES) | {"max_tokens": await self.max_tokens(request)}
        fields["logprobs"] = sampling.top_logprobs
        if sampling.json_schema is not None:
            schema = sampling.json_schema
            fields["structured_outputs"] = {"json": schema} if schema else {"json_object": True}
        if sampling.form is not None:
            fields["structured_outputs"] = {"structural_tag": structural_tag(sampling.form)}
        if request.routes_from:
            fields["routed_experts_prompt_start"] = request.routes_from
        if generate:
            fields = {"sampling_params": fields}
        else:
            fields |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
        fields["stream"] = stream
        if request.model is not None:
            fields["model"] = request.model
        if request.images:
            fields["features"] = await self._images.features(request.images, known)
        return encode(fields, "token_ids" if generate else "prompt", request.prompt)

    async def _weight_version(self) -> str | None:
        if self._reports_version:
            try:
                return str(msgspec.json.decode(await self.http.get("/weight_info"))["weight_version"])
            except (EngineError, msgspec.DecodeError, KeyError, TypeError):
                self._reports_version = False
        return None
