"""Progress of a batch on stderr: a bar on a terminal with `rich` installed, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Counts a finished rollout: whether it succeeded, of how many, and how many tokens were sampled for it."""

    def __call__(self, success: bool, total: int, tokens: int = 0) -> None: ...


_SECONDS = 5


@contextmanager
def progress(quiet: bool = False) -> Iterator[Advance]:
    """Show progress while the block runs."""
    if quiet:
        yield lambda success, total, tokens=0: None
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
        rich.progress.TextColumn("{task.fields[more]}"),
    )
    counted = _Counts()
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True)) as bar:
        task = bar.add_task("rollouts", total=None, more="")

        def advance(success: bool, total: int, tokens: int = 0) -> None:
            counted.add(success, tokens)
            bar.update(task, completed=counted.done, total=total, more=counted.text)

        yield advance


class _Counts:
    """Finished rollouts, failed ones, and the tokens that were sampled."""

    def __init__(self) -> None:
        self.done = self.failed = self.tokens = 0
        self.began = time.monotonic()

    def add(self, success: bool, tokens: int) -> None:
        self.done += 1
        self.failed += not success
        self.tokens += tokens

    @property
    def text(self) -> str:
        speed = self.tokens / max(1e-9, time.monotonic() - self.began)
        return f"{self.failed} failed" + (f", {speed:.0f} tokens/s" if self.tokens else "")


def _lines() -> Advance:
    counted = _Counts()
    printed = counted.began

    def advance(success: bool, total: int, tokens: int = 0) -> None:
        nonlocal printed
        counted.add(success, tokens)
        now = time.monotonic()
        if counted.done == total or now - printed >= _SECONDS:
            printed = now
            text = f"{counted.done} of {total} rollouts, {counted.text}, {now - counted.began:.0f} s"
            print(text, file=sys.stderr, flush=True)

    return advance
