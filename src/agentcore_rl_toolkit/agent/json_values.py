"""From the values agents really return to the ones JSON has.

| value | becomes |
|---|---|
| str, int, bool, None, finite float | itself |
| NaN, infinities | the strings `"NaN"`, `"Infinity"`, `"-Infinity"` (JSON has no such numbers) |
| dict, dataclass, pydantic model, named tuple | an object |
| list, tuple, set (sorted where it can be), numpy array, torch tensor | an array |
| numpy and torch scalar | a number |
| Decimal | a number where that is exact, else a string |
| datetime, date, time | ISO 8601 |
| timedelta | seconds |
| bytes | base64 |
| Enum | its value |
| UUID, path | a string |

Anything else raises `NotSerializable`, naming the place: `steps[3].image is a PIL.Image`. Objects of other people's
code may raise anything else when they are read, and may go on for ever: `limit` ends that. Pure.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import json
import math
import os
import uuid
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from ..common.describe import full_type_name, plain_text, short_repr, type_name
from ..errors import NotSerializable, ResultTooLarge
from .redaction import HIDDEN, Redactor

DEEPEST = 200
"""Levels of nesting that a result may have: what is deeper can't be copied, compared or printed everywhere."""

_LONGEST_PATH = 200
_MOST_BITS = 14_000  # Python neither prints nor reads integers of more than 4300 digits
_NO_FORM = object()
_MEMBER = object()  # a path's segment for what is in a set


def jsonable(
    value: Any, *, redact: Redactor | None = None, limit: float = math.inf, given: Mapping[str, Any] | None = None
) -> Any:
    """Return `value` as JSON types, with every string, keys included, passed through `redact`.

    `ResultTooLarge` if its JSON would have more than about `limit` characters, before much more has been converted.
    What a mapping has under the names in `given` is not looked at: it is replaced by what is given.

    >>> from decimal import Decimal
    >>> jsonable({"when": datetime.date(2026, 1, 2), "cost": Decimal("0.5"), "seen": {2, 1}})
    {'when': '2026-01-02', 'cost': 0.5, 'seen': [1, 2]}
    """
    return _Converter(redact, limit, given or {}).convert(value)


def dump_json(value: Any) -> bytes:
    """Strict JSON as UTF-8, one line; text that is not valid Unicode is kept as escapes."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


class _Converter:
    def __init__(self, redact: Redactor | None, limit: float, given: Mapping[str, Any]) -> None:
        self._redact: Any = redact or plain_text
        self._hides = redact.hides if redact else lambda *_: False
        self._limit = self._left = limit
        self._given = given
        self._open: set[int] = set()  # ids of the containers we are inside of
        self._path: list[Any] = []  # keys and indices of the same

    def convert(self, value: Any) -> Any:
        self._spend(1)
        if value is None or (isinstance(value, (bool, int)) and not isinstance(value, enum.Enum)):
            return value if value is None or type(value) is bool else self._int(value)
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            self._spend(str.__len__(value))
            return self._redact(plain_text(value))
        if isinstance(value, float):
            return _float(float.__float__(value))
        if len(self._open) > DEEPEST:
            raise NotSerializable(f"{self._shown()} is nested more than {DEEPEST} levels deep")
        if id(value) in self._open:
            raise NotSerializable(f"{self._shown()} contains itself")
        self._open.add(id(value))
        try:
            return self._convert_object(value)
        finally:
            self._open.discard(id(value))

    def _convert_object(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return self._mapping(value._asdict())
        if isinstance(value, (list, tuple)):
            return self._array(enumerate(value))
        if isinstance(value, (set, frozenset)):
            return self._array((_MEMBER, item) for item in _ordered(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._mapping({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
        if hasattr(type(value), "model_dump"):  # pydantic
            return self.convert(value.model_dump())
        if hasattr(value, "dtype") and hasattr(value, "tolist"):  # numpy, torch
            self._check_room(_elements(value))
            return self.convert(value.tolist())
        simple = _simple(value)
        if simple is _NO_FORM:
            raise NotSerializable(
                f"{self._shown()} is a {full_type_name(value)}, which has no JSON form",
                hint="return numbers, strings, lists and dicts of them, or convert it first",
            )
        return self.convert(simple)

    def _array(self, items: Iterable[tuple[Any, Any]]) -> list[Any]:
        result = []
        for place, item in items:
            self._path.append(place)
            result.append(self.convert(item))
            self._path.pop()
        return result

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            name = self._key(key)
            self._spend(len(name) + 1)
            shown = self._redact(name)
            if shown in result:
                said = short_repr(shown, _LONGEST_PATH)
                raise NotSerializable(f"{self._shown()} has two keys that both become {said} in JSON")
            result[shown] = self._value(name, shown, item, value)
        return result

    def _value(self, name: str, shown: str, item: Any, beside: Mapping[Any, Any]) -> Any:
        if not self._path and name in self._given:
            return self._given[name]
        if self._hides(name, item, beside):
            return HIDDEN
        self._path.append(shown)
        value = self.convert(item)
        self._path.pop()
        return value

    def _key(self, key: Any) -> str:
        if isinstance(key, str):
            return plain_text(key.value if isinstance(key, enum.Enum) else key)
        if key is None or isinstance(key, (bool, int, float)):
            return json.dumps(key)
        if hasattr(key, "dtype") and hasattr(key, "item"):
            return self._key(key.item())
        if isinstance(key, (enum.Enum, uuid.UUID, datetime.date)):
            return plain_text(str(key.value if isinstance(key, enum.Enum) else key))
        said = self._redact(short_repr(key))[:_LONGEST_PATH]
        raise NotSerializable(f"{self._shown()} has a {type_name(key)} as a key ({said}); JSON keys are strings")

    def _int(self, value: int) -> int:
        number = int.__index__(value)
        if number.bit_length() > _MOST_BITS:
            raise NotSerializable(f"{self._shown()} is an integer of more than 4,000 digits", hint="return it as text")
        return number

    def _spend(self, characters: int) -> None:
        """Every value takes at least its own characters, and one for what separates it from the next."""
        self._check_room(characters)
        self._left -= characters

    def _check_room(self, characters: int) -> None:
        if characters > self._left:
            raise ResultTooLarge(f"{self._shown()} goes past the limit of {self._limit:,} bytes", hint=TOO_LARGE_HINT)

    def _shown(self) -> str:
        """Where we are, for people: `steps[3].image`."""
        text = "".join(_segment(place) for place in self._path).removeprefix(".")
        if len(text) > _LONGEST_PATH:
            text = f"{text[: _LONGEST_PATH // 2]}…{text[-_LONGEST_PATH // 2 :]}"
        return text or "the result"


TOO_LARGE_HINT = "store what is large elsewhere, and return where it is"


def _segment(place: Any) -> str:
    if isinstance(place, int):
        return f"[{place}]"
    return "{…}" if place is _MEMBER else f".{place[:_LONGEST_PATH]}"


def _elements(array: Any) -> int:
    """How many numbers an array has, 0 if it doesn't say: numpy has `size`, torch `numel()`."""
    size = getattr(array, "size", 0)
    if callable(size):
        size = array.numel() if hasattr(array, "numel") else 0
    return size if isinstance(size, int) else 0


def _simple(value: Any) -> Any:
    """What a leaf becomes, `_NO_FORM` if nothing does."""
    if isinstance(value, Decimal):
        number = float(value)
        return number if Decimal(repr(number)) == value or not value.is_finite() else str(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (uuid.UUID, os.PathLike)):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    return _NO_FORM


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _ordered(values: set[Any] | frozenset[Any]) -> list[Any]:
    items = list(set.__iter__(values) if isinstance(values, set) else frozenset.__iter__(values))
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=short_repr)
