"""What vLLM's two ways to sample put on the wire, and what of it an engine keeps.

Pure functions from bytes to `Sampled`. Only the fields named here are decoded; a prompt that is echoed back costs
little more than its bytes. `fail` makes the error that names the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from ...errors import EngineError
from ..base import Sampled, SampleRequest
from .http_client import message
from .payload import agreeing, decode, finite, highest, merge, npy_routes

Fail = Callable[..., EngineError]
FINISH = {"length": "length", "abort": "abort"}
OLD = "returned no token ids\nhint: `return_token_ids` needs vLLM 0.10.2 or newer"
L = TypeVar("L")


class Logprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []


class WideLogprobs(Logprobs):
    """With what is only needed to report alternatives, or to mend a list of the wrong length."""

    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class Entry(msgspec.Struct):
    """One token's logprob; it is named by its id, or as `token_id:<id>`."""

    logprob: float | None = None
    token_id: int = -1
    token: str = ""
    top_logprobs: list[Entry] = []

    @property
    def id(self) -> int:
        return named_id(self.token) if self.token else self.token_id


class Entries(msgspec.Struct):
    content: list[Entry] | None = None


class Span(msgspec.Struct):
    version: str
    start: int
    end: int


class Choice(msgspec.Struct, Generic[L]):
    token_ids: list[int] | None = None
    logprobs: L | None = None
    finish_reason: str | None = None
    routed_experts: str | None = None
    weight_versions: list[Span] | None = None


class Chunk(msgspec.Struct, Generic[L]):
    """A whole answer, or one event of a stream."""

    choices: list[Choice[L]] = []
    error: Any = None


class Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None
    """Of a LoRA adapter: the model it adapts."""


class Models(msgspec.Struct):
    data: list[Model]


NARROW = msgspec.json.Decoder(Chunk[Logprobs])
WIDE = msgspec.json.Decoder(Chunk[WideLogprobs])
GENERATED = msgspec.json.Decoder(Chunk[Entries])
MODELS = msgspec.json.Decoder(Models)


def read(decoder: msgspec.json.Decoder[Any], data: bytes, fail: Fail) -> Any:
    """Decode an answer, raising the error it may be."""
    try:
        chunk = decode(decoder, data)
    except msgspec.DecodeError as e:
        raise fail(f"answered with something unexpected: {e}: {data[:200]!r}") from e
    error = getattr(chunk, "error", None)
    if error is not None:
        refused = isinstance(error, dict) and error.get("code") == 400
        raise fail(f"failed: {message(data)}", status=400 if refused else 502)
    return chunk


def completions(events: list[bytes], request: SampleRequest, fail: Fail) -> Sampled | None:
    """Of `/v1/completions`, all that arrived together."""
    return _plain(events, request) or merge([_completion(event, request, fail) for event in events])


def _plain(events: list[bytes], request: SampleRequest) -> Sampled | None:
    """The usual case at half the cost; None if there is anything unusual about it."""
    if request.sampling.top_logprobs:
        return None
    ids: list[int] = []
    logprobs: list[float | None] = []
    finish: str | None = None
    try:
        for event in events:
            choice: Any = NARROW.decode(event).choices[0]
            ids += choice.token_ids
            logprobs += choice.logprobs.token_logprobs
            finish = choice.finish_reason or finish
            if len(ids) != len(logprobs) or choice.routed_experts is not None:
                return None
            if finish is not None:
                break
    except (msgspec.DecodeError, IndexError, AttributeError, TypeError):
        return None
    return Sampled(ids, finite(logprobs), finish and FINISH.get(finish, "stop")) if ids else None


def _completion(data: bytes, request: SampleRequest, fail: Fail) -> Sampled:
    top = request.sampling.top_logprobs
    chunk = read(WIDE if top else NARROW, data, fail)
    if not chunk.choices:
        return Sampled([], [])
    choice = chunk.choices[0]
    ids = choice.token_ids
    if ids is None:
        raise fail(OLD)
    given = choice.logprobs.token_logprobs if choice.logprobs else []
    if len(given) == len(ids):
        logprobs = finite(given)
    else:
        wide = read(WIDE, data, fail).choices[0].logprobs or WideLogprobs()
        logprobs = agreeing(ids, zip(map(named_id, wide.tokens), wide.token_logprobs, strict=False))
    sampled = _sampled(choice, ids, logprobs, request.routes_from)
    if top and choice.logprobs and choice.logprobs.top_logprobs:
        alternatives = choice.logprobs.top_logprobs
        sampled.top_logprobs = [highest(((named_id(t), x) for t, x in (a or {}).items()), top) for a in alternatives]
    return sampled


def generated(events: list[bytes], request: SampleRequest, fail: Fail) -> Sampled | None:
    """Of `/inference/v1/generate`, all that arrived together."""
    return merge([_generated(event, request, fail) for event in events])


def _generated(data: bytes, request: SampleRequest, fail: Fail) -> Sampled:
    chunk = read(GENERATED, data, fail)
    if not chunk.choices:
        return Sampled([], [])
    return _from_entries(chunk.choices[0], request.sampling.top_logprobs, request.routes_from)


def without_echo(data: bytes) -> bytes:
    """An answer without the prompt in it: cutting it out costs half of skipping it while decoding.

    >>> without_echo(b'{"prompt_token_ids":[1,2],"index":0}')
    b'{"prompt_token_ids":[],"index":0}'
    """
    # Inside a string the second quote would be escaped, so this is a key.
    start = data.find(b'prompt_token_ids":[') + 19
    return data if start < 19 else data[:start] + data[data.find(b"]", start) :]


def named_id(text: str) -> int:
    """5 for `token_id:5`, which is how vLLM names a token; -1 for anything else."""
    number = text.removeprefix("token_id:")
    return int(number) if number is not text and number.isdigit() else -1


def _from_entries(choice: Choice[Entries], top: int, routes_from: int | None) -> Sampled:
    ids = choice.token_ids or []
    entries = (choice.logprobs.content if choice.logprobs else None) or []
    if len(ids) == len(entries):
        logprobs = finite([entry.logprob for entry in entries])
    else:
        logprobs = agreeing(ids, [(entry.id, entry.logprob) for entry in entries])
    sampled = _sampled(choice, ids, logprobs, routes_from)
    if top:
        sampled.top_logprobs = [
            highest(((t.id, t.logprob) for t in entry.top_logprobs if t.logprob is not None), top) for entry in entries
        ]
    return sampled


def _sampled(choice: Choice[Any], ids: list[int], logprobs: list[float | None], routes_from: int | None) -> Sampled:
    sampled = Sampled(ids, logprobs)
    if choice.finish_reason is not None:
        sampled.finish = FINISH.get(choice.finish_reason, "stop")
        sampled.versions = tuple((span.version, span.end - span.start) for span in choice.weight_versions or ())
        if choice.routed_experts is not None:
            sampled.routes = npy_routes(choice.routed_experts, routes_from or 0)
    return sampled
