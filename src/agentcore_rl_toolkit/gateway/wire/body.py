"""Bodies: JSON in, whatever clients make of it, and JSON out. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from ..faults import invalid

DEEPEST = 100
"""How deep a body may be nested."""
_LONG = 20_000  # bytes
_LINE_ENDS = [(c.encode(), b"\\u%04x" % ord(c)) for c in "\u2028\u2029\x85"]


def read_json(body: bytes) -> dict[str, Any]:
    """A request's body as an object."""
    try:
        data = orjson.loads(body)
    except ValueError:
        try:  # orjson refuses lone surrogates, which no tokenizer, log or client could take
            data = mended(json.loads(body, parse_constant=_refused))
        except (ValueError, OverflowError, RecursionError) as error:
            raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise invalid("the body is not a JSON object", code="invalid_json")
    # Counting brackets is quicker than looking for them in what they made, until there are many.
    if (len(body) > _LONG or body.count(b"[") + body.count(b"{") > DEEPEST) and depth(data) > DEEPEST:
        raise invalid(f"the body is nested more than {DEEPEST} deep", code="invalid_json")
    return data


def mended(value: Any) -> Any:
    """With U+FFFD for each lone surrogate, and floats for integers of more than 64 bits: infinite if they are larger
    than any float, as they are to a client that has no other numbers."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, (list, tuple)):
        return [mended(item) for item in value]
    if isinstance(value, dict):
        return {mended(key): mended(item) for key, item in value.items()}
    if isinstance(value, float) and math.isinf(value):
        raise ValueError("a number is too large")
    if type(value) is int and not -(2**63) <= value < 2**64:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def depth(value: Any) -> int:
    """How deep a value is nested."""
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
