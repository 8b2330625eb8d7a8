"""Whether a run still runs, and how it ended, from what its folder contains: a copy of it says the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..rollout.run_folder.run_lock import is_written_to


def run_state(
    folder: Path, summary: Mapping[str, Any] | None, findings: Sequence[Mapping[str, Any]], last_step: int | None
) -> str:
    """`running`, `ended`, `interrupted`, `stopped` by a guard, or `unfinished`.

    `running` is what the run's own locks say, and they are known on its machine alone. An unfinished run was cut off,
    or the folder is a copy of one that runs elsewhere.
    """
    if is_written_to(folder):
        return "running"
    if summary is not None:
        return "interrupted" if summary.get("interrupted") else "ended"
    return "unfinished" if stopping_guard(findings, last_step) is None else "stopped"


def stopping_guard(findings: Sequence[Mapping[str, Any]], last_step: int | None) -> str | None:
    """The guard that ended the run. A resumed run has steps after the one where a guard stopped it."""
    stops = (str(one["guard"]) for one in findings if one.get("action") == "stop" and one["step"] == last_step)
    return next(stops, None)
