"""The engine seam: token ids in; ids, logprobs, finish reason, weight version and expert routes out, as they come.

An engine knows nothing of messages, sessions or HTTP clients. One parametrized suite (`tests/contract/test_engine.py`)
runs against every implementation.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import AsyncIterator
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
    """What is sampled has to be JSON of this schema; `{}` is any JSON object."""
    form: Form | None = None
    """What a reply has to look like; only for engines with `forms`."""
    said: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Names of settings that count as set whatever their value is: one may ask for no stop strings."""

    def settings(self) -> dict[str, Any]:
        """Those that are set, by name."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "said"}
        unset = {"stop": (), "stop_token_ids": (), "logit_bias": (), "ignore_eos": False, "top_logprobs": 0}
        return {name: value for name, value in fields.items() if value is not None and value != unset.get(name)}

    def over(self, others: Sampling) -> Sampling:
        """These settings, and `others` where these say nothing."""
        theirs = {name: value for name, value in others.settings().items() if name not in self.said}
        return Sampling(**theirs | self.settings())


@dataclass(frozen=True)
class SampleRequest:
    """One sequence to sample."""

    prompt: array[int]
    """Token ids, of type `IDS`."""
    sampling: Sampling
    model: str | None = None
    """The model or LoRA adapter to sample from, where the engine has several."""
    session_id: str = ""
    """Whose request it is: requests of one session share a prefix, so a replica that has it cached comes first."""
    choice: int = 0
    """Which of a call's `n` sequences this is."""
    stream: bool = True
    """Whether tokens are wanted as they come; all at the end is cheaper for everyone."""
    routes_from: int | None = None
    """The position from which expert routes are wanted; None leaves it to the engine."""


@dataclass(slots=True)
class Sampled:
    """Tokens sampled since the last one of these. The last has a `finish`."""

    token_ids: list[int]
    logprobs: list[float | None]
    """One for each token, of the policy before temperature; None where the engine gave none."""
    finish: str | None = None
    """`stop` (a stop token or string), `length`, or `abort` (the engine gave up, e.g. for a weight update)."""
    weight_version: str | None = None
    """What the tokens were sampled with, where the engine says."""
    versions: tuple[tuple[str, int], ...] = ()
    """On the last, where the engine says: the whole sequence's weight versions, and how many tokens each is behind."""
    top_logprobs: list[dict[int, float]] | None = None
    routes: Routes | None = None


@dataclass(frozen=True)
class Routes:
    """Which experts each token went through: `layers × top_k` numbers a token, for consecutive tokens."""

    start: int
    """The position in prompt + sampled of the first token covered."""
    data: bytes = field(repr=False)
    """Little-endian integers of `itemsize` bytes, token by token."""
    width: int
    """Numbers per token: layers × top_k."""
    itemsize: int = 1

    @property
    def count(self) -> int:
        return len(self.data) // (self.width * self.itemsize)

    def since(self, position: int) -> Routes | None:
        """The part from `position` on, None if nothing is left."""
        skip = max(0, position - self.start)
        if skip >= self.count:
            return None
        return dataclasses.replace(self, start=self.start + skip, data=self.data[skip * self.width * self.itemsize :])


@dataclass(frozen=True)
class EngineInfo:
    """What an engine says of itself."""

    models: tuple[str, ...]
    """Names it samples from; the first is the default."""
    context_length: int | None = None
    weight_version: str | None = None


class Engine(Protocol):
    """What samples tokens."""

    def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        """Sample one sequence, giving tokens as they come; the last item has a `finish`.

        Closing the iterator early aborts the request in the engine. Raises `EngineError`.
        """

    async def info(self) -> EngineInfo:
        """Ask the engine what it serves. Raises `EngineError` while it can't be reached."""

    async def pause(self) -> None:
        """Start no new work; what is running goes on or is aborted, as the engine does it."""

    async def resume(self) -> None:
        """Undo `pause`."""

    async def start(self) -> None:
        """Get ready to sample, on the running loop."""

    async def close(self) -> None:
        """Let go of connections and threads; may be called twice."""
