"""vLLM in the trainer's process (TRL's `colocate`) as an engine.

TRL keeps its weights those of the trainer. One thread steps vLLM while there are requests, so that all of them share a
batch; it is held while TRL puts new weights in.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from ...gateway.engine import EngineError, EngineInfo, Sampled, SampleRequest

_NAMES = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_tokens",
)  # fmt: skip


class _Stream:
    """What one request gets, from vLLM's thread to its reader's loop."""

    def __init__(self, request: SampleRequest) -> None:
        self.request = request
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Sampled | EngineError] = asyncio.Queue()
        self.waiting = Sampled([], [])
        self.sent = time.monotonic()

    def put(self, item: Sampled | EngineError) -> None:
        self.loop.call_soon_threadsafe(self.queue.put_nowait, item)


class ColocatedEngine:
    """TRL's own vLLM, shared by all sessions of a step."""

    def __init__(self, generation: Any, *, name: str, interval: float = 0.02) -> None:
        """`generation` is the trainer's `VLLMGeneration`; a stream's tokens leave every `interval` seconds."""
        self._generation, self._llm, self.name = generation, generation.llm, name
        self._interval, self._version = interval, "0"
        self._numbers = itertools.count()
        self._streams: dict[str, _Stream] = {}
        self._added: list[tuple[str, _Stream]] = []
        self._gone: list[str] = []
        self._changed = threading.Condition()
        self._stepping = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None

    # --- the seam ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="colocated-vllm", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def info(self) -> EngineInfo:
        return EngineInfo((self.name,), self._context, self._version)

    async def pause(self) -> None:
        await asyncio.to_thread(self._stepping.acquire)

    async def resume(self) -> None:
        if self._stepping.locked():
            self._stepping.release()

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        self._check(request)
        number, stream = f"r{next(self._numbers)}", _Stream(request)
        with self._changed:
            self._added.append((number, stream))
            self._changed.notify()
        try:
            finish = None
            while finish is None:
                item = await stream.queue.get()
                if isinstance(item, EngineError):
                    raise item
                finish = item.finish
                yield item
        finally:
            with self._changed:
                self._gone.append(number)
                self._changed.notify()

    # --- for the trainer ---------------------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """No step is under way, and none begins: weights may change."""
        with self._stepping:
            yield

    def update(self, version: str) -> None:
        """TRL has put in the weights that are called `version` from now on."""
        self._version = version

    # --- vLLM's thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        engine = self._llm.llm_engine
        while True:
            with self._changed:
                while not (self._closed or self._added or self._gone or self._streams):
                    self._changed.wait()
                added, self._added = self._added, []
                gone, self._gone = self._gone, []
                closed = self._closed
            with self._stepping:
                try:
                    self._let_go(engine, list(self._streams) if closed else gone)
                    if closed:
                        return
                    for number, stream in added:
                        self._add(engine, number, stream)
                    if self._streams:
                        for output in engine.step():
                            self._hand_on(output)
                except Exception as error:  # whatever vLLM raises: every request has to hear of it
                    self._fail(engine, error)

    def _add(self, engine: Any, number: str, stream: _Stream) -> None:
        try:
            engine.add_request(
                number, {"prompt_token_ids": list(stream.request.prompt)}, self._settings(stream.request)
            )
        except ValueError as error:  # what vLLM refuses of one request
            stream.put(EngineError(f"vLLM refuses the request: {error}", status=400))
        else:
            self._streams[number] = stream

    def _let_go(self, engine: Any, numbers: list[str]) -> None:
        known = [number for number in numbers if self._streams.pop(number, None) is not None]
        if known:
            engine.abort_request(known)

    def _hand_on(self, output: Any) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        (choice,) = output.outputs
        piece = stream.waiting
        piece.token_ids += choice.token_ids
        for token, known in zip(choice.token_ids, choice.logprobs or [{}] * len(choice.token_ids), strict=True):
            piece.logprobs.append(known[token].logprob if token in known else None)
            if stream.request.sampling.top_logprobs:
                piece.top_logprobs = piece.top_logprobs or []
                piece.top_logprobs.append({other: value.logprob for other, value in known.items()})
        piece.weight_version = self._version
        now = time.monotonic()
        if choice.finish_reason is not None:
            piece.finish = choice.finish_reason if choice.finish_reason in ("stop", "length") else "abort"
            del self._streams[output.request_id]
        elif not stream.request.stream or now - stream.sent < self._interval:
            return
        stream.put(piece)
        stream.waiting, stream.sent = Sampled([], []), now

    def _fail(self, engine: Any, error: Exception) -> None:
        failed, self._streams = self._streams, {}
        for stream in failed.values():
            stream.put(EngineError(f"vLLM failed: {error!r}", sampled_any=True))

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def _context(self) -> int:
        return int(self._llm.llm_engine.model_config.max_model_len)

    def _check(self, request: SampleRequest) -> None:
        if self._thread is None or self._closed:
            raise EngineError("the engine is not running", status=503)
        if request.model not in (None, self.name):
            raise EngineError(f"there is no model {request.model!r} here, only {self.name!r}", status=404)
        if not request.prompt:
            raise EngineError("the prompt is empty", status=400)
        wanted = request.sampling.max_tokens or 1
        if (over := len(request.prompt) + wanted - self._context) > 0:
            told = f"{len(request.prompt)} tokens and {wanted} to sample, {over} more than the context of"
            raise EngineError(f"the prompt has {told} {self._context}", status=400)

    def _settings(self, request: SampleRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        asked = request.sampling
        settings = {name: getattr(asked, name) for name in _NAMES if getattr(asked, name) is not None}
        if asked.json_schema is not None:
            known = {"json": asked.json_schema} if asked.json_schema else {"json_object": True}
            settings["structured_outputs"] = StructuredOutputsParams(**known)
        return SamplingParams(
            **settings,
            max_tokens=asked.max_tokens or self._context - len(request.prompt),
            stop_token_ids=list(asked.stop_token_ids) or None,
            stop=list(asked.stop) or None,
            logit_bias=dict(asked.logit_bias) or None,
            ignore_eos=asked.ignore_eos,
            logprobs=asked.top_logprobs,
            output_kind=RequestOutputKind.DELTA,
        )
