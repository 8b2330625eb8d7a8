"""Converts the values that agents return to JSON types, by the table in docs/reference/results.md.

A value that the table lacks raises `NotSerializable`, which names its path: `steps[3].image is a PIL.Image`. Reading a
value runs the agent's code, which may raise anything else, or never end: `limit` bounds the conversion.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import json
import math
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from ...errors import NotSerializable, ResultTooLarge
from .describe import full_type_name, short_repr, type_name
from .redaction import HIDDEN, Redactor

DEEPEST = 200
"""Levels of nesting that a result may have: copying, comparing and printing deeper ones fails in some programs."""
_COSTS = {b"{": 250, b"[": 72, b":": 60, b",": 40}
"""About how many bytes of memory an object, a list, a key, or one more value takes once it is read."""
_FREE, _TIMES = 256 << 20, 4
"""Bytes of memory that any document may take, and how many times its own length on top."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
TOO_LARGE_HINT = "store large data elsewhere, and return its location"

_LONGEST_PATH = 200
_UNKNOWN = object()


def jsonable(
    value: Any, *, redact: Redactor | None = None, limit: float = math.inf, given: Mapping[str, Any] | None = None
) -> Any:
    """Return `value` as JSON types, with every string and key passed through `redact`.

    Raises `ResultTooLarge` once its JSON would have more than about `limit` characters. Entries of the outermost
    mapping whose names are in `given` are not read: their value is the given one.

    >>> from decimal import Decimal
    >>> jsonable({"when": datetime.date(2026, 1, 2), "cost": Decimal("0.5"), "seen": {2, 1}})
    {'when': '2026-01-02', 'cost': 0.5, 'seen': [1, 2]}
    """
    return _Converter(redact, limit, given or {}).convert(value)


def dump_json(value: Any) -> bytes:
    """Strict JSON as UTF-8 on one line; text that is not valid Unicode is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def find_excess(data: bytes) -> str | None:
    """Why JSON with millions of small values may not be read, None if it may.

    A hundred megabytes of them would take gigabytes of memory, and half a minute in which no other thread runs.
    """
    most = _FREE + _TIMES * len(data)
    if len(data) * max(_COSTS.values()) <= most or _memory_of(data) <= most:
        return None
    taken = _memory_of(_STRING.sub(b"", data))  # text may hold any number of commas
    return None if taken <= most else f"its many small values would take about {taken >> 20:,} MB of memory"


def _memory_of(data: bytes) -> int:
    return sum(data.count(mark) * cost for mark, cost in _COSTS.items())


class _Converter:
    def __init__(self, redact: Redactor | None, limit: float, given: Mapping[str, Any]) -> None:
        self._redact = redact
        self._limit = self._left = limit
        self._given = given
        self._open: set[int] = set()  # ids of the containers around the value
        self._path: list[str] = []

    def convert(self, value: Any) -> Any:
        self._spend(1)
        if isinstance(value, enum.Enum):
            return self.convert(value.value)
        if value is None or isinstance(value, (bool, int)):
            return value
        if isinstance(value, float):
            return _convert_float(float(value))
        if isinstance(value, str):
            self._spend(len(value))
            return self._hide(value)
        if len(self._open) > DEEPEST:
            raise NotSerializable(f"{self._where()} is nested more than {DEEPEST} levels deep")
        if id(value) in self._open:
            raise NotSerializable(f"{self._where()} contains itself")
        self._open.add(id(value))
        try:
            return self._convert_object(value)
        finally:
            self._open.discard(id(value))

    def _convert_object(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._convert_mapping(value)
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return self._convert_mapping(value._asdict())
        if isinstance(value, (list, tuple)):
            return self._convert_items(value)
        if isinstance(value, (set, frozenset)):
            return self._convert_items(_sorted(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._convert_mapping({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
        if hasattr(type(value), "model_dump"):  # pydantic
            return self.convert(value.model_dump())
        if hasattr(value, "dtype") and hasattr(value, "tolist"):  # numpy, torch
            self._check_left(_count_elements(value))
            return self.convert(value.tolist())
        simple = _simplify(value)
        if simple is _UNKNOWN:
            raise NotSerializable(
                f"{self._where()} is a {full_type_name(value)}, which JSON can't represent",
                hint="return numbers, strings, lists and dicts of them, or convert it first",
            )
        return self.convert(simple)

    def _convert_items(self, items: Iterable[Any]) -> list[Any]:
        converted = []
        for index, item in enumerate(items):
            self._path.append(f"[{index}]")
            converted.append(self.convert(item))
            self._path.pop()
        return converted

    def _convert_mapping(self, mapping: Mapping[Any, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for key, item in mapping.items():
            name = self._convert_key(key)
            self._spend(len(name) + 1)
            shown = self._hide(name)
            if shown in converted:
                raise NotSerializable(
                    f"{self._where()} has two keys that both become {short_repr(shown, _LONGEST_PATH)} in JSON"
                )
            if not self._path and name in self._given:
                converted[shown] = self._given[name]
            elif self._redact is not None and self._redact.hides(name, item, mapping):
                converted[shown] = HIDDEN
            else:
                self._path.append(f".{shown[:_LONGEST_PATH]}")
                converted[shown] = self.convert(item)
                self._path.pop()
        return converted

    def _convert_key(self, key: Any) -> str:
        if isinstance(key, enum.Enum):
            return str(key.value)
        if isinstance(key, str):
            return key
        if key is None or isinstance(key, (bool, int, float)):
            return json.dumps(key)
        if hasattr(key, "dtype") and hasattr(key, "item"):
            return self._convert_key(key.item())
        if isinstance(key, (uuid.UUID, datetime.date)):
            return str(key)
        shown = short_repr(key, _LONGEST_PATH, self._redact)
        raise NotSerializable(f"{self._where()} has a {type_name(key)} as a key ({shown}); JSON keys are strings")

    def _hide(self, text: str) -> str:
        return text if self._redact is None else self._redact(text)

    def _spend(self, characters: int) -> None:
        """Count the characters of a value, and one for what separates it from the next."""
        self._check_left(characters)
        self._left -= characters

    def _check_left(self, characters: int) -> None:
        if characters > self._left:
            raise ResultTooLarge(f"{self._where()} exceeds the limit of {self._limit:,} bytes", hint=TOO_LARGE_HINT)

    def _where(self) -> str:
        """The path of the current value, for people: `steps[3].image`."""
        text = "".join(self._path).removeprefix(".")
        if len(text) > _LONGEST_PATH:
            text = f"{text[: _LONGEST_PATH // 2]}…{text[-_LONGEST_PATH // 2 :]}"
        return text or "the result"


def _count_elements(array: Any) -> int:
    """How many numbers an array has, 0 if unknown: numpy has `size`, torch `numel()`."""
    size = getattr(array, "size", 0)
    if callable(size):
        size = array.numel() if hasattr(array, "numel") else 0
    return size if isinstance(size, int) else 0


def _simplify(value: Any) -> Any:
    """A single value as a string or number, `_UNKNOWN` if it can't be converted to one."""
    if isinstance(value, Decimal):
        number = float(value)
        return number if Decimal(repr(number)) == value or not value.is_finite() else str(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return _UNKNOWN


def _convert_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _sorted(values: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=short_repr)
