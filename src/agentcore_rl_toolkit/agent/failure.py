"""What a result or a log line says about an exception: its message and its traceback.

Both have a bound, whatever the exception is: one with a message of a gigabyte, with ten thousand causes, or one that
raises when it is asked. So nothing here trusts it: causes are read where Python keeps them, and each message is cut
before it is joined to others. Pure.
"""

from __future__ import annotations

import itertools
import traceback
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from ..common.describe import full_type_name, text_of
from .redaction import Redactor

LONGEST_MESSAGE = 10_000
"""Characters of a message that are kept."""
LONGEST_TRACEBACK = 100_000
"""Characters of a traceback that are kept."""

_MOST_EXCEPTIONS = 10  # of a chain, from each end; of a group
_MOST_FRAMES = 50  # of a traceback, from each end
_LONGEST_LINE = 300
_DEEPEST_GROUP = 3
_MOST_PRINTED = 100

_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"


def message_of(error: BaseException, redact: Redactor) -> str:
    """The exception's message without secrets, in at most `LONGEST_MESSAGE` characters.

    >>> message_of(ValueError("no such row"), Redactor())
    'no such row'
    """
    return redact.cut(text_of(error), LONGEST_MESSAGE)


def traceback_of(error: BaseException, redact: Redactor) -> str:
    """The traceback as Python prints it, without secrets, in at most `LONGEST_TRACEBACK` characters."""
    try:
        text = "".join(_Printer(redact).chain(error, 0))
    except BaseException:  # what reads a module's source is other people's code too
        text = f"{full_type_name(error)}: {message_of(error, redact)}\n"
    return redact.cut(text, LONGEST_TRACEBACK)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and what it was raised from or during, each once."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        before = _slot(cause, "__cause__")
        cause = before if before is not None else _slot(cause, "__context__")


def traceback_frames(error: BaseException) -> Iterator[TracebackType]:
    """The exception's traceback, outermost frame first."""
    tb = _slot(error, "__traceback__")
    while tb is not None:
        yield tb
        tb = tb.tb_next


class _Printer:
    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._left = _MOST_PRINTED

    def chain(self, error: BaseException, depth: int) -> Iterator[str]:
        """The exception after those it came from."""
        for exception, connection in reversed(_printed_chain(error)):
            yield from [exception] if isinstance(exception, str) else self._one(exception, depth)
            yield connection

    def _one(self, error: BaseException, depth: int) -> Iterator[str]:
        """One exception: where it was raised, what it says, its notes, and the exceptions it groups."""
        if self._left == 0:
            yield "… more exceptions …\n"
            return
        self._left -= 1
        frames = sum(1 for _ in traceback_frames(error))
        if frames:
            yield "Traceback (most recent call last):\n"
            yield from _frame_lines(_slot(error, "__traceback__"), frames)
        message = message_of(error, self._redact)
        name = full_type_name(error).removeprefix("__main__.")
        yield f"{name}: {message}\n" if message else f"{name}\n"
        for note in _items(error, "__notes__"):
            yield self._redact.cut(text_of(note), LONGEST_MESSAGE) + "\n"
        for place, member in enumerate(_items(error, "exceptions") if depth < _DEEPEST_GROUP else (), 1):
            if issubclass(type(member), BaseException):
                text = self._redact.cut("".join(self.chain(member, depth + 1)), LONGEST_MESSAGE)
                yield f"  +---------------- {place} ----------------\n"
                yield "".join(f"  | {line}\n" for line in text.splitlines())


def _printed_chain(error: BaseException) -> list[tuple[Any, str]]:
    """What Python would print of the chain, last first, with how each led to the next; the middle left out."""
    links = _links(error)
    first: list[tuple[Any, str]] = list(itertools.islice(links, _MOST_EXCEPTIONS))
    last: deque[tuple[Any, str]] = deque(maxlen=_MOST_EXCEPTIONS)
    more = sum(1 for _ in map(last.append, links))
    if more > _MOST_EXCEPTIONS:
        first.append((f"… {more - _MOST_EXCEPTIONS:,} more exceptions …\n", last[0][1]))
    return first + list(last)


def _links(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    seen: set[int] = set()
    connection = ""
    exception: BaseException | None = error
    while exception is not None and id(exception) not in seen:
        seen.add(id(exception))
        cause, context = _slot(exception, "__cause__"), _slot(exception, "__context__")
        hidden = _slot(exception, "__suppress_context__")
        yield exception, connection
        connection = _CAUSED if cause is not None else _MEANWHILE
        exception = cause if cause is not None else None if hidden else context


def _frame_lines(tb: Any, frames: int) -> Iterator[str]:
    if frames <= 2 * _MOST_FRAMES:
        yield from _formatted(tb, None)
        return
    yield from _formatted(tb, _MOST_FRAMES)
    yield f"  … {frames - 2 * _MOST_FRAMES:,} more frames …\n"
    yield from _formatted(tb, -_MOST_FRAMES)


def _formatted(tb: TracebackType, limit: int | None) -> list[str]:
    summary = traceback.extract_tb(tb, limit)
    for place, frame in enumerate(summary):
        texts = (frame.filename, frame.name, frame.line or "")
        if any(len(text) > _LONGEST_LINE for text in texts):
            filename, name, line = (text[:_LONGEST_LINE] for text in texts)
            summary[place] = traceback.FrameSummary(filename, frame.lineno, name, lookup_line=False, line=line)
    return summary.format()


def _slot(error: BaseException, name: str) -> Any:
    """An attribute that every exception has, where Python keeps it: a class may have put its own in front."""
    return BaseException.__dict__[name].__get__(error)


def _items(error: BaseException, name: str) -> list[Any]:
    """The first few of a list or tuple that an exception may have; nothing if it is anything else."""
    try:
        value: Any = getattr(error, name, None)
        return list(value[:_MOST_EXCEPTIONS]) if type(value) in (list, tuple) else []
    except BaseException:
        return []
