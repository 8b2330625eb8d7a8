"""Sampling settings, under the names that OpenAI's clients and servers give them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ....engine.base import Sampling
from ....errors import GatewayFault
from ..fields import flag, short

# name → (smallest, largest, whole numbers only)
_NUMBERS: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, False),
    "top_k": (-1, 2**31 - 1, True),
    "min_p": (0.0, 1.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "repetition_penalty": (0.0, 100.0, False),
    "max_tokens": (1, 2**31 - 1, True),
    "max_completion_tokens": (1, 2**31 - 1, True),
    "min_tokens": (0, 2**31 - 1, True),
    "seed": (-(2**63), 2**64 - 1, True),
}


_SWITCHED = {name: name for name in ("stop", "stop_token_ids", "logit_bias", "ignore_eos")}
_SWITCHED["response_format"] = "json_schema"
"""Settings that can be said to be off, and where `Sampling` has them."""
SAMPLING = frozenset({*_NUMBERS, *_SWITCHED})
"""What `read_sampling` reads."""


def read_sampling(body: dict[str, Any], *, top_logprobs: int = 0) -> Sampling:
    """The sampling settings of a request, or of a session's defaults."""
    numbers: dict[str, Any] = {}
    for name, (least, most, whole) in _NUMBERS.items():
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, float) and whole and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (whole and not isinstance(value, int)):
            raise GatewayFault.invalid(f"{name} is {short(value)}, not a {'whole ' if whole else ''}number", param=name)
        if not (least <= value <= most) or not math.isfinite(value):
            raise GatewayFault.invalid(f"{name} is {short(value)}; expected {least:g} to {most:g}", param=name)
        numbers[name] = value
    longest = numbers.pop("max_completion_tokens", None)
    if longest is not None:
        numbers["max_tokens"] = longest
    if numbers.get("top_k") == 0:
        numbers["top_k"] = -1
    return Sampling(
        **numbers,
        stop=_stop(body.get("stop")),
        stop_token_ids=tuple(_ids(body.get("stop_token_ids"), "stop_token_ids")),
        logit_bias=_bias(body.get("logit_bias")),
        ignore_eos=flag(body, "ignore_eos"),
        top_logprobs=top_logprobs,
        json_schema=_schema(body.get("response_format")),
        explicit=frozenset(field for name, field in _SWITCHED.items() if name in body and body[name] is not None),
    )


def _stop(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > 16 or not all(isinstance(s, str) for s in stops):
        raise GatewayFault.invalid("stop is neither a text nor a list of up to 16 texts", param="stop")
    return tuple(s for s in stops if s)


def _ids(ids: Any, name: str) -> Iterable[int]:
    if ids is None:
        return ()
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise GatewayFault.invalid(f"{name} is not a list of token ids", param=name)
    return ids


def _bias(bias: Any) -> tuple[tuple[int, float], ...]:
    if bias is None:
        return ()
    try:
        pairs = tuple((int(token), float(value)) for token, value in bias.items())
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise GatewayFault.invalid("logit_bias is not an object of token ids and numbers", param="logit_bias") from None
    if not all(0 <= token < 2**31 and -100 <= value <= 100 for token, value in pairs):
        raise GatewayFault.invalid("logit_bias is outside of -100 to 100", param="logit_bias")
    return pairs


def _schema(wanted: Any) -> dict[str, Any] | None:
    if wanted is None:
        return None
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema":
        described = wanted.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        if isinstance(schema, dict):
            return schema
    raise GatewayFault.invalid(
        "response_format is none of text, json_object and json_schema (with its schema)", param="response_format"
    )
