"""Words for objects of other people's code, which may do anything when asked: raise `SystemExit` in `__repr__`, answer
with a gigabyte, or lie about their class.

Nothing here raises, and every text is a plain `str`. A `repr` is short; how much of a message is kept is up to the
caller.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import Any

SHORT = 1000
"""Characters of a `repr` that are kept at most."""

_TYPE_NAME = type.__dict__["__name__"]
_TYPE_MODULE = type.__dict__["__module__"]
_TYPE_QUALNAME = type.__dict__["__qualname__"]


def type_name(value: object) -> str:
    """The name of the value's class, whatever its metaclass says."""
    return plain_text(_TYPE_NAME.__get__(type(value)))[:SHORT]


def full_type_name(value: object) -> str:
    """The same with its module; without for the built-in ones.

    >>> full_type_name(object()), full_type_name(reprlib.Repr())
    ('object', 'reprlib.Repr')
    """
    kind = type(value)
    module, name = _TYPE_MODULE.__get__(kind), plain_text(_TYPE_QUALNAME.__get__(kind))
    return (name if not isinstance(module, str) or module == "builtins" else f"{plain_text(module)}.{name}")[:SHORT]


def text_of(value: object) -> str:
    """`str(value)`, or that it fails; of any length."""
    try:
        return plain_text(str(value))
    except BaseException as error:
        return f"<str() of this {type_name(value)} raised {type_name(error)}>"


def short_repr(value: object, limit: int = SHORT, clean: Callable[[str, int], str] | None = None) -> str:
    """`repr(value)` in at most `limit` characters, made without making a long one first where that can be avoided.

    Each text in it goes through `clean(text, limit)` before it is cut, so that no half of a secret is left.

    >>> short_repr([0] * 10**6, 40)
    '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ...'
    """
    try:
        text = plain_text(_ShortRepr(limit, clean or cut).repr(value))
    except BaseException:
        text = f"a {type_name(value)}, whose repr fails"
    return cut(text, limit)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters of a text."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def plain_text(text: str) -> str:
    """The same characters as a plain `str`: a subclass may have methods of its own."""
    return str.__getitem__(text, slice(None))


def article(value: Any) -> str:
    """
    >>> article(None), article([1])
    ('None', 'a list')
    """
    return "None" if value is None else f"a {type_name(value)}"


class _ShortRepr(reprlib.Repr):
    def __init__(self, limit: int, clean: Callable[[str, int], str]) -> None:
        super().__init__()
        self._limit, self._clean = limit, clean
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 50
        self.maxarray, self.maxlong = 50, limit

    def repr_str(self, x: str, level: int) -> str:
        return repr(self._clean(plain_text(x), self._limit))

    def repr_instance(self, x: Any, level: int) -> str:
        return self._clean(plain_text(repr(x)), self._limit)
