"""Sampling settings, under the names that OpenAI's clients and servers give them. Pure."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from ....engine.base import Sampling
from ....errors import GatewayFault
from ..fields import Count, Penalty, PositiveCount, Probability, Seed, StopStrings, Temperature, TopK, parse


class JsonSchemaFormat(Struct):
    schema: dict[str, Any] | None = None


class ResponseFormat(Struct):
    type: Annotated[str, Meta(pattern="^(text|json_object|json_schema)$")]
    json_schema: JsonSchemaFormat | None = None


class SamplingSettings(Struct, kw_only=True):
    """How to sample. A setting that is null or missing keeps its default."""

    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Temperature | None = None
    max_tokens: PositiveCount | None = None
    max_completion_tokens: PositiveCount | None = None
    min_tokens: Count | None = None
    seed: Seed | None = None
    stop: str | StopStrings | None = None
    stop_token_ids: list[Count] | None = None
    logit_bias: dict[Annotated[str, Meta(pattern="^[0-9]{1,9}$")], Annotated[float, Meta(ge=-100, le=100)]] | None = (
        None
    )
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None


_RENAMED = {"response_format": "json_schema"}
_CAN_BE_EMPTY = ("stop", "stop_token_ids", "logit_bias", "ignore_eos", "response_format")
_NUMBERS = (
    *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("max_tokens", "min_tokens", "seed"),
)
SAMPLING = frozenset(SamplingSettings.__struct_fields__)
"""The names of all settings."""


def read_sampling(body: dict[str, Any], top_logprobs: int = 0) -> Sampling:
    return to_sampling(parse(body, SamplingSettings), top_logprobs)


def to_sampling(settings: SamplingSettings, top_logprobs: int = 0) -> Sampling:
    """The settings as engines take them."""
    numbers = {name: value for name in _NUMBERS if (value := getattr(settings, name)) is not None}
    if settings.max_completion_tokens is not None:
        numbers["max_tokens"] = settings.max_completion_tokens
    if settings.top_k == 0:
        numbers["top_k"] = -1
    stops = [settings.stop] if isinstance(settings.stop, str) else settings.stop or ()
    return Sampling(
        **numbers,
        stop=tuple(stop for stop in stops if stop),
        stop_token_ids=tuple(settings.stop_token_ids or ()),
        logit_bias=tuple((int(token), value) for token, value in (settings.logit_bias or {}).items()),
        ignore_eos=bool(settings.ignore_eos),
        top_logprobs=top_logprobs,
        json_schema=_json_schema(settings.response_format),
        explicit=frozenset(_RENAMED.get(name, name) for name in _CAN_BE_EMPTY if getattr(settings, name) is not None),
    )


def _json_schema(wanted: ResponseFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise GatewayFault.invalid("response_format.json_schema.schema is missing", param="response_format")
    return wanted.json_schema.schema


def json_format(schema: dict[str, Any] | None) -> ResponseFormat | None:
    """The format of a reply in JSON of this schema; None without one."""
    return ResponseFormat("json_schema", JsonSchemaFormat(schema)) if schema is not None else None
