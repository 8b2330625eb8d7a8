"""Values of rollouts as JSON for the page, of bounded size whatever a rollout says.

A text that is too long becomes `{"$clipped": its beginning, "length", "at"}`; the page asks for the rest by `at`, the
path to it. Numbers that JSON or JavaScript can't hold become texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError

LONGEST_TEXT = 16_000
LARGEST_ANSWER = 2_000_000
"""Characters of all texts of one answer."""
_MOST_ITEMS, _DEEPEST, _LONGEST_KEY = 2_000, 40, 200
_EXACT = 2**53


class Clipper:
    """Clips the values of one answer.

    >>> Clipper(longest=3).clip({"a": ["long text", 2**60, float("nan")]})
    {'a': [{'$clipped': 'lon', 'length': 9, 'at': ['a', 0]}, '1152921504606846976', 'nan']}
    """

    def __init__(self, longest: int = LONGEST_TEXT, budget: int = LARGEST_ANSWER) -> None:
        self._longest, self._left = longest, budget

    def clip(self, value: Any, at: tuple[str | int, ...] = ()) -> Any:
        """The value as it is sent; `at` is where it is."""
        if isinstance(value, str):
            return self._clip_text(value, at)
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, (int, float)):
            return value if abs(value) <= _EXACT and math.isfinite(value) else str(value)
        if len(at) >= _DEEPEST:
            return "…"
        if isinstance(value, Mapping):
            items = [*value.items()][:_MOST_ITEMS]
            self._left -= sum(min(len(str(name)), _LONGEST_KEY) for name, _ in items)
            return {_name(str(name)): self.clip(one, (*at, str(name))) for name, one in items}
        if isinstance(value, (list, tuple)):
            kept = [self.clip(one, (*at, number)) for number, one in enumerate(value[:_MOST_ITEMS])]
            return kept if len(value) <= _MOST_ITEMS else [*kept, f"… and {len(value) - _MOST_ITEMS} more"]
        return self._clip_text(repr(value), at)

    def _clip_text(self, text: str, at: tuple[str | int, ...]) -> Any:
        most = max(0, min(self._longest, self._left))
        self._left -= min(len(text), most)
        return text if len(text) <= most else {"$clipped": text[:most], "length": len(text), "at": [*at]}


def find_text(value: Any, at: list[Any]) -> str:
    """The text at a path of keys and places."""
    for step in at:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            raise ConfigError(f"there is no text at {at}") from None
    if not isinstance(value, str):
        raise ConfigError(f"the value at {at} is not a text")
    return value


def _name(name: str) -> str:
    """A key that can't be taken for one of ours."""
    return f"${name}"[:_LONGEST_KEY] if name.startswith("$") else name[:_LONGEST_KEY]
