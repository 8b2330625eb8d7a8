"""JSON bodies in and out: bounded in depth and memory, and lenient towards clients' encoders. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from ...errors import GatewayFault

MAX_DEPTH = 100
"""How deep a body may be nested."""
_LONG = 20_000  # bytes
_COSTS = {b"{": 400, b"[": 120, b",": 60}
"""About how many bytes of memory an object, a list, or one more value in them takes, read and as canonical messages."""
_FREE, _TIMES = 64 << 20, 8
"""Bytes of memory that any body may take, and how many times its own length on top."""
_LINE_ENDS = [(c.encode(), b"\\u%04x" % ord(c)) for c in "\u2028\u2029\x85"]


def read_json(body: bytes) -> dict[str, Any]:
    _check_memory(body)
    try:
        data = orjson.loads(body)
    except ValueError:
        try:  # orjson refuses lone surrogates, which no tokenizer, log or client could take
            data = to_encodable(json.loads(body, parse_constant=_refused))
        except (ValueError, OverflowError, RecursionError) as error:
            raise GatewayFault.invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise GatewayFault.invalid("the body is not a JSON object", code="invalid_json")
    # Counting brackets is quicker than walking the parsed objects, unless the body has many.
    if (len(body) > _LONG or body.count(b"[") + body.count(b"{") > MAX_DEPTH) and depth(data) > MAX_DEPTH:
        raise GatewayFault.invalid(f"the body is nested more than {MAX_DEPTH} deep", code="invalid_json")
    return data


def _check_memory(body: bytes) -> None:
    """Refuse a body whose many small values would take far more memory than the body itself.

    Brackets and commas inside strings count like any other: the strings may be JSON again, as tool arguments are.
    """
    if len(body) * max(_COSTS.values()) <= _FREE:
        return
    cost, most = sum(body.count(mark) * each for mark, each in _COSTS.items()), _FREE + _TIMES * len(body)
    if cost > most:
        message = f"the body's JSON would take about {cost >> 20} MB of memory; at most {most >> 20} MB for its length"
        raise GatewayFault(message, status=413, code="body_too_large", hint="send fewer, longer values")


def to_encodable(value: Any) -> Any:
    """Replaces each lone surrogate with U+FFFD, and integers of more than 64 bits with floats. An integer larger than
    any float becomes infinite, as in a client whose only numbers are floats."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, (list, tuple)):
        return [to_encodable(item) for item in value]
    if isinstance(value, dict):
        return {to_encodable(key): to_encodable(item) for key, item in value.items()}
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("a number is too large")
    if type(value) is int and not -(2**63) <= value < 2**64:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def depth(value: Any) -> int:
    known, level = 0, [value]
    while level:
        known += 1
        inner = (outer.values() if type(outer) is dict else outer for outer in level)
        level = [item for items in inner for item in items if type(item) is dict or type(item) is list]
    return known


def dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates
        return json.dumps(value, separators=(",", ":")).encode()


def one_line(data: bytes) -> bytes:
    """JSON without the characters that are line ends to some clients, though not to the standard."""
    for line_end, escaped in _LINE_ENDS:
        if line_end in data:
            data = data.replace(line_end, escaped)
    return data
