"""What each process of a run has used, and what it could not train on: `totals/K.json`, replaced as the run goes on.

For trainers that run as a program of their own: the processes that run rollouts may be killed at any time, and the
command that started the program has to say at its end what became of them. Totals count from a process's start.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...client.runtimes.usage import sum_used
from ..failure_causes import Causes
from .run_text import read_object
from .run_writer import write_anew


@dataclass(frozen=True)
class ProcessTotals:
    """Totals over all processes."""

    used: dict[str, Any]
    """The `used` of a summary; empty if no process got as far as a rollout."""
    causes: Causes
    stopped: str | None
    """Why a process ended the run, if one did."""


def write_totals(
    folder: Path, process: int, *, used: Mapping[str, Any], causes: Causes, stopped: Exception | None = None
) -> None:
    """Write the totals of one process; `stopped` is the error that ends the run."""
    path = folder / "totals" / f"{process}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {"used": used, "causes": causes.to_dict(), "stopped": None if stopped is None else str(stopped)}
    write_anew(path, json.dumps(known))


def read_totals(folder: Path) -> ProcessTotals:
    """The totals of all processes so far."""
    found = [known for path in sorted((folder / "totals").glob("*.json")) if (known := read_object(path))]
    return ProcessTotals(
        used=sum_used(known["used"] for known in found),
        causes=Causes.merged(Causes.from_dict(known["causes"]) for known in found),
        stopped=next((known["stopped"] for known in found if known["stopped"]), None),
    )


def remove_totals(folder: Path) -> None:
    """Remove the totals of an earlier run."""
    shutil.rmtree(folder / "totals", ignore_errors=True)
