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

Anything else raises `NotSerializable`, naming the place: `steps[3].image is a PIL.Image`. Pure.
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
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from .errors import NotSerializable
from .redact import HIDDEN, Redactor

_DEEPEST = 200
_NO_FORM = object()


def jsonable(value: Any, *, redact: Redactor | None = None, path: str = "") -> Any:
    """Return `value` as JSON types, with every string, keys included, passed through `redact`.

    >>> from decimal import Decimal
    >>> jsonable({"when": datetime.date(2026, 1, 2), "cost": Decimal("0.5"), "seen": {2, 1}})
    {'when': '2026-01-02', 'cost': 0.5, 'seen': [1, 2]}
    """
    return _Converter(redact).convert(value, path, 0)


def dump_json(value: Any) -> bytes:
    """Strict JSON as UTF-8, one line; text that is not valid Unicode is kept as escapes."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


class _Converter:
    def __init__(self, redact: Redactor | None) -> None:
        self._redact = redact
        self._open: set[int] = set()  # ids of the containers we are inside of

    def convert(self, value: Any, path: str, depth: int) -> Any:
        if value is None or (isinstance(value, (bool, int)) and not isinstance(value, enum.Enum)):
            return value if value is None or type(value) in (bool, int) else int(value)
        if isinstance(value, str) and not isinstance(value, enum.Enum):
            return self._redact(value) if self._redact else str(value)
        if isinstance(value, float):
            return _float(value)
        if depth > _DEEPEST:
            raise NotSerializable(f"{_shown(path)[:80]}… is nested more than {_DEEPEST} levels deep")
        if id(value) in self._open:
            raise NotSerializable(f"{_shown(path)} contains itself")
        self._open.add(id(value))
        try:
            return self._convert_object(value, path, depth + 1)
        finally:
            self._open.discard(id(value))

    def _convert_object(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value, path, depth)
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return self._mapping(value._asdict(), path, depth)
        if isinstance(value, (list, tuple)):
            return [self.convert(item, f"{path}[{i}]", depth) for i, item in enumerate(value)]
        if isinstance(value, (set, frozenset)):
            return [self.convert(item, f"{path}{{…}}", depth) for item in _ordered(value)]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return self._mapping(fields, path, depth)
        if hasattr(type(value), "model_dump"):  # pydantic
            return self.convert(value.model_dump(), path, depth)
        if hasattr(value, "dtype") and hasattr(value, "tolist"):  # numpy, torch
            return self.convert(value.tolist(), path, depth)
        simple = _simple(value)
        if simple is _NO_FORM:
            kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
            raise NotSerializable(
                f"{_shown(path)} is a {kind}, which has no JSON form",
                hint="return numbers, strings, lists and dicts of them, or convert it first",
            )
        return self.convert(simple, path, depth)

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            name = self._key(key, path)
            shown = self._redact(name) if self._redact else name
            if shown in result:
                raise NotSerializable(f"{_shown(path)} has two keys that both become {shown!r} in JSON")
            if self._redact and self._redact.is_secret(name) and item is not None:
                result[shown] = HIDDEN
            else:
                result[shown] = self.convert(item, f"{path}.{shown}" if path else shown, depth)
        return result

    def _key(self, key: Any, path: str) -> str:
        if isinstance(key, str):
            return key.value if isinstance(key, enum.Enum) else key
        if key is None or isinstance(key, (bool, int, float)):
            return json.dumps(key)
        if hasattr(key, "dtype") and hasattr(key, "item"):
            return self._key(key.item(), path)
        if isinstance(key, (enum.Enum, uuid.UUID, datetime.date)):
            return str(key.value if isinstance(key, enum.Enum) else key)
        said = self._redact(repr(key)) if self._redact else repr(key)
        raise NotSerializable(f"{_shown(path)} has a {type(key).__name__} as a key ({said}); JSON keys are strings")


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
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _ordered(values: Any) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _shown(path: str) -> str:
    return path or "the result"
