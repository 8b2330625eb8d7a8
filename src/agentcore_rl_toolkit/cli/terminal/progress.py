"""Progress of a batch on stderr: a bar on a terminal with `rich` installed, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[bool, int, int], None]
"""Called for each finished rollout: whether it succeeded, how many are done, and of how many."""
_SECONDS = 5


@contextmanager
def progress(quiet: bool = False) -> Iterator[Advance]:
    """Show progress while the block runs."""
    if quiet:
        yield lambda success, done, total: None
        return
    try:
        import rich.progress
    except ImportError:
        yield _lines()
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TimeRemainingColumn(),
        rich.progress.TextColumn("{task.fields[failed]} failed"),
    )
    failed = 0
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True)) as bar:
        task = bar.add_task("rollouts", total=None, failed=0)

        def advance(success: bool, done: int, total: int) -> None:
            nonlocal failed
            failed += not success
            bar.update(task, completed=done, total=total, failed=failed)

        yield advance


def _lines() -> Advance:
    started = printed = time.monotonic()
    failed = 0

    def advance(success: bool, done: int, total: int) -> None:
        nonlocal failed, printed
        failed += not success
        now = time.monotonic()
        if done == total or now - printed >= _SECONDS:
            printed = now
            text = f"{done} of {total} rollouts, {failed} failed, {now - started:.0f} s"
            print(text, file=sys.stderr, flush=True)

    return advance
