"""The repr of our objects, for prompts, notebooks and debuggers: their identity, and never a secret."""

from __future__ import annotations

import reprlib
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def object_repr(value: object, *named: Any, **shown: Any) -> str:
    """The name of a value's class with what to show of it; long values are cut.

    >>> object_repr(ValueError(), "runs", steps=3)
    "ValueError('runs', steps=3)"
    """
    parts = [_SHORT.repr(part) for part in named]
    parts += [f"{name}={_SHORT.repr(part)}" for name, part in shown.items()]
    return f"{type(value).__name__}({', '.join(parts)})"
