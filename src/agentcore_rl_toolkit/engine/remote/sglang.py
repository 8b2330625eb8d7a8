"""SGLang as an engine, over its own `/generate`.

Start the server with SGLANG_RETURN_ORIGINAL_LOGPROB=1: its logprobs are those of the policy only then, and those after
temperature otherwise. Streams may repeat all that was sampled so far (its default) or not: both are understood.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl as ssl_module
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import orjson

from ...errors import EngineError
from ..base import EngineInfo, Sampled, SampleRequest
from ..reply_form import structural_tag
from .framing import DONE
from .http_client import HttpClient, message
from .payload import agreeing, decode, encode, finite, highest, int32_routes, merge, settings

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
Logprob = tuple[float | None, int, Any]


class Meta(msgspec.Struct):
    completion_tokens: int = 0
    """Sampled so far, whether this event repeats them or not."""
    prompt_tokens: int = 0
    finish_reason: dict[str, Any] | None = None
    output_token_logprobs: list[Logprob] | None = None
    output_top_logprobs: list[list[Logprob] | None] | None = None
    weight_version: str | None = None
    routed_experts: str | None = None


class Output(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: Meta = msgspec.field(default_factory=Meta)
    error: Any = None

    @property
    def start(self) -> int:
        """Which of the sampled tokens is the first here."""
        return self.meta_info.completion_tokens - len(self.output_ids)


class Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class Models(msgspec.Struct):
    data: list[Model]


OUTPUT = msgspec.json.Decoder(Output)
MODELS = msgspec.json.Decoder(Models)

_FINISHED = re.compile(rb'"finish_reason":\s*\{')  # in a string, its quotes would be escaped


class SglangEngine:
    """An SGLang server at `url`.

    `pause_mode` is SGLang's: `retract` computes running requests anew when resumed, `in_place` goes on with their old
    KV cache, `abort` ends them.
    """

    forms = True

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        pause_mode: str = "retract",
        timeout: float = 600.0,
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        self.http = HttpClient(url, api_key=api_key, timeout=timeout, ssl=ssl)
        self._pause_mode = pause_mode
        self._info: EngineInfo | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        rid = uuid.uuid4().hex
        body = await self._body(request, rid)
        count, ended = 0, False
        try:
            with await self.http.post("/generate", *body) as answer:
                while events := await (answer.events() if request.stream else answer.whole()):
                    sampled = self._read([event for event in events if event != DONE], count, request)
                    if sampled is None:
                        continue
                    count += len(sampled.token_ids)
                    if sampled.finish is not None:
                        await answer.skip()
                        ended = True
                        yield sampled
                        return
                    yield sampled
            raise self.http.error("ended its answer without a finish reason")
        except EngineError as e:
            e.sampled_any |= count > 0
            ended = e.status != 504  # one that fell silent may still be sampling
            raise
        finally:
            if not ended:
                self._abort(rid)

    async def info(self) -> EngineInfo:
        models = self._decode(MODELS, await self.http.get("/v1/models")).data
        own = [model for model in models if model.parent is None]
        names = [model.id for model in own] + [model.id for model in models if model.parent is not None]
        length = next((model.max_model_len for model in own if model.max_model_len), None)
        self._info = EngineInfo(tuple(names), length, await self._version())
        return self._info

    async def pause(self) -> None:
        await self.http.tell("/pause_generation", orjson.dumps({"mode": self._pause_mode}), if_there=True)

    async def resume(self) -> None:
        await self.http.tell("/continue_generation", b"{}", if_there=True)

    async def load_lora(self, name: str, path: str) -> None:
        """Sample from the adapter at `path`, on the server's disk, as the model `name`."""
        await self.http.tell("/load_lora_adapter", orjson.dumps({"lora_name": name, "lora_path": path}))

    async def unload_lora(self, name: str) -> None:
        await self.http.tell("/unload_lora_adapter", orjson.dumps({"lora_name": name}))

    async def start(self) -> None:
        """Nothing to do: connections are made when they are needed."""

    async def close(self) -> None:
        await asyncio.gather(*self._aborts)
        await self.http.close()

    async def _body(self, request: SampleRequest, rid: str) -> tuple[bytes, ...]:
        sampling = request.sampling
        params = settings(sampling, NAMES) | {"max_new_tokens": await self._limit(request)}
        if params.get("top_k") == 0:  # everybody else's word for all of them
            params["top_k"] = -1
        if sampling.ignore_eos:
            params["ignore_eos"] = True
        if sampling.logit_bias:
            params["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
        if sampling.json_schema is not None:
            params["json_schema"] = orjson.dumps(sampling.json_schema or {"type": "object"}).decode()
        if sampling.form is not None:
            params["structural_tag"] = structural_tag(sampling.form)
        fields: dict[str, Any] = {"rid": rid, "sampling_params": params, "return_logprob": True}
        fields |= {"top_logprobs_num": sampling.top_logprobs, "stream": request.stream}
        if request.routes_from is not None:
            fields |= {"return_routed_experts": True, "routed_experts_start_len": request.routes_from}
        if request.model is not None and request.model != (await self._known()).models[0]:
            fields["lora_path"] = request.model
        return encode(fields, "input_ids", request.prompt)

    async def _limit(self, request: SampleRequest) -> int:
        """How many tokens to ask for: left to itself, SGLang stops after 128."""
        if request.sampling.max_tokens is not None:
            return request.sampling.max_tokens
        length = (await self._known()).context_length
        if length is None:
            raise self.http.error("does not say its context length, so max_tokens is needed", status=400)
        return max(1, length - len(request.prompt) - 1)

    async def _known(self) -> EngineInfo:
        return self._info or await self.info()

    def _read(self, events: list[bytes], count: int, request: SampleRequest) -> Sampled | None:
        """What is new in `events`, `count` tokens being known. Newest first: it may repeat the others."""
        end = next((place for place, event in enumerate(events) if _FINISHED.search(event)), len(events))
        events = events[: end + 1]  # anything after the finish is not of this sequence
        outputs: list[Output] = []
        for event in reversed(events):
            outputs.insert(0, self._decode(OUTPUT, event, sampled_any=len(events) > 1))
            if outputs[0].start <= count:
                break
        parts = []
        for output in outputs:
            parts.append(self._new(output, count, request))
            count += len(parts[-1].token_ids)
        return merge(parts)

    def _new(self, output: Output, count: int, request: SampleRequest) -> Sampled:
        meta = output.meta_info
        skip = count - output.start
        if skip < 0:
            raise self.http.error(f"left out {-skip} tokens of its stream", sampled_any=True)
        ids = output.output_ids[skip:]
        entries = meta.output_token_logprobs or []
        if [entry[1] for entry in entries[skip:]] == ids:
            logprobs = finite([entry[0] for entry in entries[skip:]])
        else:
            logprobs = agreeing(output.output_ids, [(entry[1], entry[0]) for entry in entries])[skip:]
        sampled = Sampled(ids, logprobs, weight_version=meta.weight_version)
        if request.sampling.top_logprobs:
            alternatives = (meta.output_top_logprobs or [])[skip:]
            sampled.top_logprobs = [
                highest(((token, x) for x, token, _ in a or () if x is not None), request.sampling.top_logprobs)
                for a in alternatives
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

    def _decode(self, decoder: msgspec.json.Decoder[Any], data: bytes, *, sampled_any: bool = False) -> Any:
        try:
            answer = decode(decoder, data)
        except msgspec.DecodeError as e:
            raise self.http.error(f"answered with something unexpected: {e}: {data[:200]!r}") from e
        error = getattr(answer, "error", None)
        if error is not None:
            refused = isinstance(error, dict) and error.get("code") == 400
            raise self.http.error(f"failed: {message(data)}", status=400 if refused else 502, sampled_any=sampled_any)
        return answer

    async def _version(self) -> str | None:
        for path in ("/model_info", "/get_model_info"):
            with contextlib.suppress(EngineError, msgspec.DecodeError):
                told = msgspec.json.decode(await self.http.get(path))
                return None if told.get("weight_version") is None else str(told["weight_version"])
        return None

    def _abort(self, rid: str) -> None:
        """Closing the connection is enough while it streams; a request that doesn't stream has to be named."""
        task = asyncio.get_running_loop().create_task(self._tell_abort(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _tell_abort(self, rid: str) -> None:
        with contextlib.suppress(EngineError):
            await self.http.tell("/abort_request", orjson.dumps({"rid": rid}), if_there=True)
