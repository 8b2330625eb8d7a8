"""The JSON of vLLM's two ways to sample, and the tokens in it. Pure; only the fields named here are decoded."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from ..base import Sampled, SampleRequest
from .payload import finite, highest, match_logprobs, npy_routes

FINISH = {"length": "length", "abort": "abort"}
L = TypeVar("L")


class PlainLogprobs(msgspec.Struct):
    token_logprobs: list[float | None] = []


class CompletionLogprobs(PlainLogprobs):
    """Of `/v1/completions`; a token is named `token_id:<id>`."""

    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class TokenLogprob(msgspec.Struct):
    """Of `/inference/v1/generate`; a token is named by its id, or as `token_id:<id>`."""

    logprob: float | None = None
    token_id: int = -1
    token: str = ""
    top_logprobs: list[TokenLogprob] = []

    @property
    def id(self) -> int:
        return named_id(self.token) if self.token else self.token_id


class TokenLogprobs(msgspec.Struct):
    content: list[TokenLogprob] | None = None


class VersionSpan(msgspec.Struct):
    version: str
    start: int
    end: int


class VllmChoice(msgspec.Struct, Generic[L]):
    token_ids: list[int] | None = None
    logprobs: L | None = None
    finish_reason: str | None = None
    routed_experts: str | None = None
    weight_versions: list[VersionSpan] | None = None


class VllmReply(msgspec.Struct, Generic[L]):
    """A whole reply, or one event of a stream."""

    choices: list[VllmChoice[L]] = []
    error: Any = None


PLAIN = msgspec.json.Decoder(VllmReply[PlainLogprobs])
COMPLETION = msgspec.json.Decoder(VllmReply[CompletionLogprobs])
GENERATED = msgspec.json.Decoder(VllmReply[TokenLogprobs])


def read_plain(events: list[bytes]) -> Sampled | None:
    """The tokens of events of `/v1/completions` that hold ids, logprobs and a finish; None if one holds anything else.

    A stream has an event for each token: this takes 0.6 us an event, the general way 1.4.
    """
    whole = Sampled([], [])
    decode, ids, logprobs = PLAIN.decode, whole.token_ids, whole.logprobs
    try:
        for event in events:
            reply = decode(event)
            choice: Any = reply.choices[0]
            ids += choice.token_ids
            logprobs += choice.logprobs.token_logprobs
            if len(ids) != len(logprobs) or reply.error is not None:
                return None
            if choice.finish_reason is not None:
                if choice.routed_experts is not None or choice.weight_versions is not None:
                    return None
                whole.finish = FINISH.get(choice.finish_reason, "stop")
                break
    except (ValueError, IndexError, AttributeError, TypeError):
        return None
    whole.logprobs = finite(logprobs)
    return whole if ids or whole.finish is not None else None


def read_completion(choice: VllmChoice[CompletionLogprobs], request: SampleRequest) -> Sampled:
    """The tokens of one event of `/v1/completions`."""
    top, ids, given = request.sampling.top_logprobs, choice.token_ids or [], choice.logprobs or CompletionLogprobs()
    if len(given.token_logprobs) == len(ids):
        logprobs = finite(given.token_logprobs)
    else:
        logprobs = match_logprobs(ids, zip(map(named_id, given.tokens), given.token_logprobs, strict=False))
    sampled = _sampled(choice, ids, logprobs, request.routes_from)
    if top and given.top_logprobs:
        sampled.top_logprobs = [
            highest(((named_id(name), logprob) for name, logprob in (entries or {}).items()), top)
            for entries in given.top_logprobs
        ]
    return sampled


def read_generated(choice: VllmChoice[TokenLogprobs], request: SampleRequest) -> Sampled:
    """The tokens of one event of `/inference/v1/generate`."""
    top, ids = request.sampling.top_logprobs, choice.token_ids or []
    entries = (choice.logprobs.content if choice.logprobs else None) or []
    if len(ids) == len(entries):
        logprobs = finite([entry.logprob for entry in entries])
    else:
        logprobs = match_logprobs(ids, [(entry.id, entry.logprob) for entry in entries])
    sampled = _sampled(choice, ids, logprobs, request.routes_from)
    if top:
        sampled.top_logprobs = [
            highest(((t.id, t.logprob) for t in entry.top_logprobs if t.logprob is not None), top) for entry in entries
        ]
    return sampled


def named_id(text: str) -> int:
    """5 for `token_id:5`, which is how vLLM names a token; -1 for anything else."""
    number = text.removeprefix("token_id:")
    return int(number) if number is not text and number.isdigit() else -1


def _sampled(choice: VllmChoice[Any], ids: list[int], logprobs: list[float | None], routes_from: int | None) -> Sampled:
    sampled = Sampled(ids, logprobs)
    if choice.finish_reason is not None:
        sampled.finish = FINISH.get(choice.finish_reason, "stop")
        sampled.versions = tuple((span.version, span.end - span.start) for span in choice.weight_versions or ())
        if choice.routed_experts is not None:
            sampled.routes = npy_routes(choice.routed_experts, routes_from or 0)
    return sampled
