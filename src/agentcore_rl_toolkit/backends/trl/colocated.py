"""vLLM in the trainer's process (TRL's `colocate`) as an engine. TRL keeps vLLM's weights equal to the trainer's.

One thread steps vLLM while it has requests, so all of them share a batch. TRL holds the thread to load weights, and
`pause` holds it until `resume`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

from ...engine.base import EngineInfo, Sampled, SampleRequest, SteppedEngine, check_request, count_version
from ...engine.reply_form import structural_tag
from ...errors import EngineError

_SAMPLING_NAMES = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_tokens",
)  # fmt: skip


class _Stream:
    """The output of one request, from vLLM's thread to the event loop of its reader."""

    def __init__(self, request: SampleRequest) -> None:
        self.request = request
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Sampled | EngineError] = asyncio.Queue()
        self.waiting = Sampled([], [])
        self.versions: list[tuple[str, int]] = []
        """Weight versions, and how many tokens each sampled."""
        self.sent = time.monotonic()

    def put(self, item: Sampled | EngineError) -> None:
        with contextlib.suppress(RuntimeError):  # the reader's loop is closed
            self.loop.call_soon_threadsafe(self.queue.put_nowait, item)


class ColocatedEngine(SteppedEngine):
    """TRL's own vLLM, shared by all sessions of a step."""

    forms = True

    def __init__(self, generation: Any, *, name: str, interval: float = 0.02) -> None:
        """`generation` is the trainer's `VLLMGeneration`; a stream sends its tokens every `interval` seconds."""
        super().__init__()
        self._generation, self._llm, self.name = generation, generation.llm, name
        self._interval, self._version = interval, "0"
        self._numbers = itertools.count()
        self._streams: dict[str, _Stream] = {}
        self._added: list[tuple[str, _Stream]] = []
        self._ended: list[str] = []
        self._closed = False
        self._thread: threading.Thread | None = None

    # --- the engine protocol ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="colocated-vllm", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        with self.gate.changed:
            self._closed = True
            self.gate.changed.notify_all()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    async def info(self) -> EngineInfo:
        return EngineInfo((self.name,), self._context, self._version)

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        self._check(request)
        number, stream = f"r{next(self._numbers)}", _Stream(request)
        with self.gate.changed:
            self._added.append((number, stream))
            self.gate.changed.notify_all()
        try:
            finish = None
            while finish is None:
                item = await stream.queue.get()
                if isinstance(item, EngineError):
                    raise item
                finish = item.finish
                yield item
        finally:
            with self.gate.changed:
                self._ended.append(number)
                self.gate.changed.notify_all()

    # --- for the trainer ---------------------------------------------------------------------------------------------

    def update(self, version: str) -> None:
        """Name the weights that TRL has loaded in this hold. Later requests reuse no keys and values from before it."""
        self._version = version

    # --- vLLM's thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        engine = self._llm.llm_engine
        while True:
            with self.gate.changed:
                self.gate.changed.wait_for(lambda: self._closed or (not self.gate.holds and self._busy()))
                if self._closed:
                    break
                self.gate.stepping = True
                added, self._added = self._added, []
                ended, self._ended = self._ended, []
            try:
                self._step(engine, added, ended)
            except Exception as error:  # vLLM may raise anything, and every request has to fail with it
                self._fail(engine, added, EngineError(f"vLLM failed: {error!r}", sampled_any=True))
            finally:
                with self.gate.changed:
                    self.gate.stepping = False
                    self.gate.changed.notify_all()
        self._fail(engine, self._added, EngineError("the engine was closed", status=503, sampled_any=True))

    def _busy(self) -> bool:
        return bool(self._added or self._ended or self._streams)

    def _step(self, engine: Any, added: list[tuple[str, _Stream]], ended: list[str]) -> None:
        for number, stream in added:
            if number not in ended:
                self._add(engine, number, stream)
        self._abort(engine, ended)
        if self._streams:
            for output in engine.step():
                self._deliver(output)

    def _add(self, engine: Any, number: str, stream: _Stream) -> None:
        # TRL resets vLLM's prefix cache after it has loaded weights, but vLLM keeps the cache while requests run.
        prompt = {"prompt_token_ids": list(stream.request.prompt), "cache_salt": self._version}
        try:
            engine.add_request(number, prompt, self._sampling_params(stream.request))
        except ValueError as error:  # vLLM refuses this request only
            stream.put(EngineError(f"vLLM refuses the request: {error}", status=400))
        else:
            self._streams[number] = stream

    def _abort(self, engine: Any, numbers: list[str]) -> None:
        known = [number for number in numbers if self._streams.pop(number, None) is not None]
        if known:
            engine.abort_request(known)

    def _deliver(self, output: Any) -> None:
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
        count_version(stream.versions, self._version, len(choice.token_ids))
        now = time.monotonic()
        if choice.finish_reason is not None:
            piece.finish = choice.finish_reason if choice.finish_reason in ("stop", "length") else "abort"
            piece.versions = tuple(stream.versions)
            del self._streams[output.request_id]
        elif not stream.request.stream or now - stream.sent < self._interval:
            return
        stream.put(piece)
        stream.waiting, stream.sent = Sampled([], []), now

    def _fail(self, engine: Any, added: list[tuple[str, _Stream]], error: EngineError) -> None:
        """Fail all requests, even those that have not reached vLLM yet."""
        failed, self._streams = self._streams, {}
        with contextlib.suppress(Exception):
            engine.abort_request(list(failed))
        for stream in (failed | dict(added)).values():
            stream.put(error)

    # --- requests ----------------------------------------------------------------------------------------------------

    @property
    def _context(self) -> int:
        return int(self._llm.llm_engine.model_config.max_model_len)

    def _check(self, request: SampleRequest) -> None:
        if self._thread is None or self._closed:
            raise EngineError("the engine is not running", status=503)
        check_request(request, self.name, self._context)

    def _sampling_params(self, request: SampleRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        asked = request.sampling
        settings = {name: getattr(asked, name) for name in _SAMPLING_NAMES if getattr(asked, name) is not None}
        if asked.json_schema is not None:
            known = {"json": asked.json_schema} if asked.json_schema else {"json_object": True}
            settings["structured_outputs"] = StructuredOutputsParams(**known)
        if asked.form is not None:
            settings["structured_outputs"] = StructuredOutputsParams(structural_tag=structural_tag(asked.form))
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
