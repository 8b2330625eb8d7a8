"""Progress of a batch on stderr: a bar, if `rich` is installed and somebody is looking, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Progress(Protocol):
    """Told of every item."""

    def __call__(self, item: Any, done: int, total: int) -> None: ...


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """Show progress while the block runs."""
    if quiet:
        yield lambda item, done, total: None
        return
    try:
        import rich.progress
    except ImportError:
        yield _Lines()
        return
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TimeRemainingColumn(),
        rich.progress.TextColumn("{task.fields[failed]} failed"),
    )
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True)) as bar:
        task = bar.add_task("rollouts", total=None, failed=0)
        failed = 0

        def advance(item: Any, done: int, total: int) -> None:
            nonlocal failed
            failed += not item.success
            bar.update(task, completed=done, total=total, failed=failed)

        yield advance


class _Lines:
    def __init__(self) -> None:
        self._start = self._said = time.monotonic()
        self._failed = 0

    def __call__(self, item: Any, done: int, total: int) -> None:
        self._failed += not item.success
        now = time.monotonic()
        if done == total or now - self._said >= 5:
            self._said = now
            text = f"{done} of {total} rollouts, {self._failed} failed, {now - self._start:.0f} s"
            print(text, file=sys.stderr, flush=True)
