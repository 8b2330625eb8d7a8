"""The `Engine` protocol: token ids in; ids, logprobs, finish reason, weight version and expert routes out.

An engine doesn't see messages or HTTP clients. One suite (`tests/contract/test_engine.py`) runs against every
implementation.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import EngineError as EngineError
from .reply_form import Form

IDS = "I"
"""The array type code of token ids: four bytes each."""


@dataclass(frozen=True)
class Sampling:
    """How to sample. `None` leaves a setting to the engine."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int | None = None
    ignore_eos: bool = False
    top_logprobs: int = 0
    """How many alternatives to report with each token."""
    json_schema: dict[str, Any] | None = None
    """The sampled text must be JSON of this schema; `{}` is any JSON object."""
    form: Form | None = None
    """The form that a reply must have; only for engines with `forms`."""
    explicit: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Settings that count as set even with their default value: a request may ask for no stop strings."""

    def settings(self) -> dict[str, Any]:
        """The settings that are set, by name."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "explicit"}
        unset = {"stop": (), "stop_token_ids": (), "logit_bias": (), "ignore_eos": False, "top_logprobs": 0}
        return {name: value for name, value in fields.items() if value is not None and value != unset.get(name)}

    def with_defaults(self, others: Sampling) -> Sampling:
        """These settings, and those of `others` where these are unset."""
        defaults = {name: value for name, value in others.settings().items() if name not in self.explicit}
        return Sampling(**defaults | self.settings())


@dataclass(frozen=True)
class PromptImage:
    """An image in a prompt."""

    offset: int
    """The position of its first placeholder token."""
    length: int
    """The number of its placeholder tokens."""
    sha256: str
    """Of the image's file: its name in the engine's caches."""
    token: int
    """The id of its placeholder tokens."""
    png: Callable[[], bytes] = field(repr=False, compare=False)
    """Makes a PNG of the pixels that the model's processor gets: RGB, turned the right way."""


@dataclass(frozen=True)
class SampleRequest:
    """One sequence to sample."""

    prompt: array[int]
    """Token ids, of type `IDS`."""
    sampling: Sampling
    model: str | None = None
    """The model or LoRA adapter to sample from, where the engine has several."""
    session_id: str = ""
    """Requests of one session share a prefix, so they go to the replica that has it cached."""
    choice: int = 0
    """Which of a call's `n` sequences this is."""
    stream: bool = True
    """Whether to give tokens as they come; all at the end is cheaper."""
    routes_from: int | None = None
    """The first position to report expert routes for; None leaves it to the engine."""
    images: tuple[PromptImage, ...] = ()
    """The images in the prompt; only for engines with `images`."""


@dataclass(slots=True)
class Sampled:
    """The tokens since the previous item of a stream. The last item has a `finish`."""

    token_ids: list[int]
    logprobs: list[float | None]
    """One per token, of the policy before temperature; None where the engine gave none."""
    finish: str | None = None
    """`stop` (a stop token or string), `length`, or `abort` (the engine gave up, e.g. for a weight update)."""
    weight_version: str | None = None
    """The weights that sampled the tokens, if the engine reports them."""
    versions: tuple[tuple[str, int], ...] = ()
    """On the last item, if the engine reports them: its weight versions, and how many tokens each sampled."""
    top_logprobs: list[dict[int, float]] | None = None
    routes: Routes | None = None


@dataclass(frozen=True)
class Routes:
    """The experts of consecutive tokens: `layers × top_k` numbers per token."""

    start: int
    """The position of the first token, in prompt and sampled ids together."""
    data: bytes = field(repr=False)
    """Little-endian integers of `itemsize` bytes, token by token."""
    width: int
    """Numbers per token: layers × top_k."""
    itemsize: int = 1

    @property
    def count(self) -> int:
        return len(self.data) // (self.width * self.itemsize)

    def starting_at(self, position: int) -> Routes | None:
        """The part from `position` on; None if nothing is left."""
        skip = max(0, position - self.start)
        if skip >= self.count:
            return None
        return dataclasses.replace(self, start=self.start + skip, data=self.data[skip * self.width * self.itemsize :])


@dataclass(frozen=True)
class EngineInfo:
    """What an engine reports about itself."""

    models: tuple[str, ...]
    """Names it samples from; the first is the default."""
    context_length: int | None = None
    weight_version: str | None = None


@dataclass(frozen=True)
class EngineLoad:
    """How busy an inference server is."""

    kv_used: float
    """The share of its KV cache that is in use, from 0 to 1."""
    running: int
    waiting: int
    """Requests in its queue."""
    preempted: int = 0
    """Requests that it gave up for lack of KV cache, since its start."""

    @property
    def next_kv(self) -> float:
        """About the share of the cache that one more request takes: as much as those that run, on average."""
        return self.kv_used / self.running if self.running else 0.0


class Engine(Protocol):
    """Samples tokens."""

    def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        """Sample one sequence, giving tokens as they come; the last item has a `finish`.

        Closing the iterator early aborts the request in the engine. Raises `EngineError`.
        """

    async def info(self) -> EngineInfo:
        """What the engine serves. Raises `EngineError` while it can't be reached."""

    async def pause(self) -> None:
        """Start no new request until `resume`; running ones continue, wait or abort, depending on the engine."""

    async def resume(self) -> None:
        """Undo `pause`; does nothing if the engine is not paused."""

    async def start(self) -> None:
        """Prepare to sample, on the running loop."""

    async def close(self) -> None:
        """Release connections and threads; may be called twice."""


class HoldingEngine:
    """Base of engines that hold new requests while they are paused; running ones continue."""

    def __init__(self) -> None:
        self.resumed = asyncio.Event()
        """`sample` waits for it."""
        self.resumed.set()

    @property
    def paused(self) -> bool:
        return not self.resumed.is_set()

    async def pause(self) -> None:
        self.resumed.clear()

    async def resume(self) -> None:
        self.resumed.set()

    async def start(self) -> None:
        """Nothing to prepare, unless an engine says otherwise."""

    async def close(self) -> None:
        """Nothing to release, unless an engine says otherwise."""


class StepGate:
    """Stops a thread that samples in steps between two of them, from any other thread.

    Several may hold it at the same time; it goes on after the last release.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        """Guards this state, and whatever else the thread waits for."""
        self.holds = 0
        self.stepping = False
        """Set and cleared by the thread, which begins no step while there are holds."""

    def hold(self) -> None:
        """Let no further step begin; `wait_until_idle` waits for the one in progress."""
        with self.changed:
            self.holds += 1
            self.changed.notify_all()

    def wait_until_idle(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: not self.stepping)

    def release(self) -> None:
        with self.changed:
            self.holds -= 1
            self.changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the step in progress and begin none: weights may change in the block."""
        self.hold()
        try:
            self.wait_until_idle()
            yield
        finally:
            self.release()


class SteppedEngine:
    """Base of engines whose own thread samples in steps: a pause is one hold, however often it is repeated."""

    def __init__(self) -> None:
        self.gate = StepGate()
        self._paused = False
        self._pausing = asyncio.Lock()

    async def pause(self) -> None:
        """Wait for the step in progress, then sample nothing; running sequences continue after `resume`."""
        async with self._pausing:
            if self._paused:
                return
            self.gate.hold()
            try:
                await asyncio.to_thread(self.gate.wait_until_idle)
            except BaseException:  # the caller was cancelled
                self.gate.release()
                raise
            self._paused = True

    async def resume(self) -> None:
        async with self._pausing:
            if self._paused:
                self._paused = False
                self.gate.release()


def check_request(request: SampleRequest, model: str, context: int | None) -> None:
    """Refuse a request for another model, without a prompt, or too long for the context."""
    prompt, wanted = len(request.prompt), request.sampling.max_tokens
    if request.model not in (None, model):
        raise EngineError(f"this engine serves {model!r}, not {request.model!r}", status=404)
    if not prompt:
        raise EngineError("the prompt is empty", status=400)
    if wanted is not None and wanted < 1:
        raise EngineError(f"max_tokens is {wanted}, but must be at least 1", status=400)
    over = 0 if context is None else prompt + (wanted or 1) - context
    if over > 0:
        sizes = f"{prompt} tokens and {wanted or 'at least 1'} to sample"
        raise EngineError(f"the prompt has {sizes}, {over} more than the context of {context}", status=400)


def count_version(versions: list[tuple[str, int]], version: str, tokens: int) -> None:
    """Count tokens that were sampled with a version of the weights, after those counted before."""
    if versions and versions[-1][0] == version:
        tokens += versions.pop()[1]
    versions.append((version, tokens))
