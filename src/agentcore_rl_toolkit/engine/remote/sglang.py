"""SGLang as an engine, over its own `/generate`.

Start the server with SGLANG_RETURN_ORIGINAL_LOGPROB=1: only then are its logprobs those of the policy; otherwise they
are those after temperature. A stream's events may repeat all tokens so far (SGLang's default) or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import orjson

from ...errors import EngineError
from ..base import Sampled, SampleRequest
from ..reply_form import structural_tag
from .payload import encode, finite, highest, int32_routes, match_logprobs, merge, named_settings
from .server import ServerEngine

NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "sampling_seed",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_new_tokens",
}
SglangLogprob = tuple[float | None, int, Any]


class SglangMeta(msgspec.Struct):
    completion_tokens: int = 0
    """Sampled so far, whether this event repeats them or not."""
    finish_reason: dict[str, Any] | None = None
    output_token_logprobs: list[SglangLogprob] | None = None
    output_top_logprobs: list[list[SglangLogprob] | None] | None = None
    weight_version: str | None = None
    routed_experts: str | None = None


class SglangOutput(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: SglangMeta = msgspec.field(default_factory=SglangMeta)
    error: Any = None

    @property
    def start(self) -> int:
        """Which of the sampled tokens is the first here."""
        return self.meta_info.completion_tokens - len(self.output_ids)


OUTPUT = msgspec.json.Decoder(SglangOutput)
_FINISHED = re.compile(rb'"finish_reason":\s*\{')  # within a string, its quotes would be escaped


class SglangEngine(ServerEngine):
    """An SGLang server at `url`. It recomputes the requests that a pause interrupts after `resume`."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout: float = 600.0) -> None:
        super().__init__(url, api_key=api_key, timeout=timeout)
        self._aborts: set[asyncio.Task[None]] = set()

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        rid = uuid.uuid4().hex
        body = await self._body(request, rid)
        count, ended = 0, False
        replies = self.exchange("/generate", body, request.stream, lambda events: self._read(events, count, request))
        try:
            async with contextlib.aclosing(replies):
                async for sampled in replies:
                    count += len(sampled.token_ids)
                    ended = sampled.finish is not None
                    yield sampled
        except EngineError as e:
            ended = e.status != 504  # one that fell silent may still be sampling
            raise
        finally:
            if not ended:
                self._abort(rid)

    async def pause(self) -> None:
        await self.http.post_command("/pause_generation", b'{"mode":"retract"}', optional=True)

    async def resume(self) -> None:
        await self.http.post_command("/continue_generation", b"{}", optional=True)

    async def close(self) -> None:
        await asyncio.gather(*self._aborts)
        await super().close()

    async def _body(self, request: SampleRequest, rid: str) -> tuple[bytes, ...]:
        sampling = request.sampling
        # SGLang counts one token less than its context length.
        params = named_settings(sampling, NAMES) | {"max_new_tokens": await self.max_tokens(request, reserved=1)}
        if params.get("top_k") == 0:  # elsewhere the word for all tokens
            params["top_k"] = -1
        if sampling.json_schema is not None:
            params["json_schema"] = orjson.dumps(sampling.json_schema or {"type": "object"}).decode()
        if sampling.form is not None:
            params["structural_tag"] = structural_tag(sampling.form)
        fields: dict[str, Any] = {"rid": rid, "sampling_params": params, "return_logprob": True}
        fields |= {"top_logprobs_num": sampling.top_logprobs, "stream": request.stream}
        if request.routes_from is not None:
            fields |= {"return_routed_experts": True, "routed_experts_start_len": request.routes_from}
        if request.model is not None and request.model != (await self.cached_info()).models[0]:
            fields["lora_path"] = request.model
        return encode(fields, "input_ids", request.prompt)

    def _read(self, events: list[bytes], count: int, request: SampleRequest) -> Sampled | None:
        """The new tokens in `events`, after the first `count`. Newest event first, as it may repeat the others."""
        end = next((place for place, event in enumerate(events) if _FINISHED.search(event)), len(events))
        events = events[: end + 1]  # later events don't belong to this sequence
        outputs: list[SglangOutput] = []
        for event in reversed(events):
            outputs.insert(0, self.decode(OUTPUT, event, sampled_any=len(events) > 1))
            if outputs[0].start <= count:
                break
        parts = []
        for output in outputs:
            parts.append(self._new_tokens(output, count, request))
            count += len(parts[-1].token_ids)
        return merge(parts)

    def _new_tokens(self, output: SglangOutput, count: int, request: SampleRequest) -> Sampled:
        meta, top = output.meta_info, request.sampling.top_logprobs
        skip = count - output.start
        if skip < 0:
            raise self.http.error(f"left out {-skip} tokens of its stream", sampled_any=True)
        ids = output.output_ids[skip:]
        entries = meta.output_token_logprobs or []
        if [entry[1] for entry in entries[skip:]] == ids:
            logprobs = finite([entry[0] for entry in entries[skip:]])
        else:
            logprobs = match_logprobs(output.output_ids, [(entry[1], entry[0]) for entry in entries])[skip:]
        sampled = Sampled(ids, logprobs, weight_version=meta.weight_version)
        if top:
            alternatives = (meta.output_top_logprobs or [])[skip:]
            sampled.top_logprobs = [
                highest(((token, x) for x, token, _ in some or () if x is not None), top) for some in alternatives
            ]
        if meta.finish_reason is not None:
            sampled.finish = self._finish(meta.finish_reason)
            if meta.routed_experts is not None:
                start = request.routes_from or 0
                # All tokens but the last, which no forward pass has seen.
                covered = len(request.prompt) + meta.completion_tokens - 1 - start
                sampled.routes = int32_routes(meta.routed_experts, start, covered)
        return sampled

    def _finish(self, reason: dict[str, Any]) -> str:
        kind = str(reason.get("type"))
        status = reason.get("status_code")
        if kind == "abort" and status:
            raise self.http.error(f"failed: {reason.get('message')}", status=400 if status == 400 else 502)
        return kind if kind in ("length", "abort") else "stop"

    async def _weight_version(self) -> str | None:
        for path in ("/model_info", "/get_model_info"):
            with contextlib.suppress(EngineError, msgspec.DecodeError):
                version = msgspec.json.decode(await self.http.get(path)).get("weight_version")
                return None if version is None else str(version)
        return None

    def _abort(self, rid: str) -> None:
        """Closing the connection is enough while it streams; a request that doesn't stream has to be named."""
        task = asyncio.get_running_loop().create_task(self._post_abort(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _post_abort(self, rid: str) -> None:
        with contextlib.suppress(EngineError):
            await self.http.post_command("/abort_request", orjson.dumps({"rid": rid}), optional=True)
