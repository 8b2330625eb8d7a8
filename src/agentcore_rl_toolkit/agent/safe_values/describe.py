"""Bounded text about an agent's values and exceptions, for results and log lines.

Describing either runs the agent's code (`__repr__`, `__str__`), which may raise anything, `SystemExit` included. These
functions let nothing out. Each text is redacted before it is cut, so that no half of a secret stays visible.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

from .redaction import Redactor

LONGEST_REPR = 1000
LONGEST_MESSAGE = 10_000
LONGEST_TRACEBACK = 100_000


def type_name(value: object) -> str:
    return type(value).__name__[:LONGEST_REPR]


def full_type_name(value: object) -> str:
    """The same with its module, except for built-in classes.

    >>> full_type_name(object()), full_type_name(Redactor())
    ('object', 'agentcore_rl_toolkit.agent.safe_values.redaction.Redactor')
    """
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name[:LONGEST_REPR]


def with_article(value: object) -> str:
    """
    >>> with_article(None), with_article([1])
    ('None', 'a list')
    """
    return "None" if value is None else f"a {type_name(value)}"


def text_of(value: object) -> str:
    """`str(value)`, or a note that it failed."""
    try:
        return str(value)
    except BaseException as error:
        return f"<str() of this {type_name(value)} raised {type_name(error)}>"


def short_repr(value: object, limit: int = LONGEST_REPR, redact: Redactor | None = None) -> str:
    """`repr(value)`, redacted, in at most `limit` characters.

    >>> short_repr([0] * 1000, 40)
    '[0, 0… 2,960 characters left out … 0, 0]'
    """
    try:
        text = repr(value)
    except BaseException:
        text = f"a {type_name(value)} whose repr fails"
    return (redact or Redactor()).cut(text, limit)


def message_of(error: BaseException, redact: Redactor) -> str:
    """The exception's message, redacted, in at most `LONGEST_MESSAGE` characters.

    >>> message_of(ValueError("no such row"), Redactor())
    'no such row'
    """
    return redact.cut(text_of(error), LONGEST_MESSAGE)


def traceback_of(error: BaseException, redact: Redactor) -> str:
    """The traceback as Python prints it, redacted, in at most `LONGEST_TRACEBACK` characters."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:  # reading source lines and notes runs code of the agent's
        text = f"{full_type_name(error)}: {message_of(error, redact)}\n"
    return redact.cut(text, LONGEST_TRACEBACK)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, then each one it was raised from or during."""
    seen: set[int] = set()
    cause: Any = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ if cause.__cause__ is not None else cause.__context__
