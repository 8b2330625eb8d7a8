"""The progress inside one step or evaluation: rollouts done, of how many, failed, and tokens a second."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...rollout import Action, Rollout


class PartProgress:
    """Counts the rollouts of a part as they end, and passes a line to `show`, at most one every `seconds`."""

    def __init__(self, title: str, total: int, show: Callable[[str], None], seconds: float) -> None:
        self._title, self._total, self._show, self._seconds = title, total, show, seconds
        self._began = self._shown = time.monotonic()
        self._done = self._failed = self._tokens = 0

    def add(self, rollout: Rollout, *, show: bool = True) -> None:
        """Count a rollout, and show the line unless `show` is off. One that runs again has failed, but is not done."""
        self._done += rollout.action is not Action.REFILL
        self._failed += rollout.failed
        self._tokens += rollout.fidelity.sampled
        now = time.monotonic()
        if show and now - self._shown >= self._seconds and self._done < self._total:
            self._shown = now
            speed = self._tokens / max(1e-9, now - self._began)
            counted = f"{self._done} of {self._total} rollouts, {self._failed} failed"
            self._show(f"{self._title}: {counted}, {speed:.0f} tokens/s, {now - self._began:.0f} s")
