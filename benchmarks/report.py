"""What every benchmark does with its figures: a table for people, a JSON file for the record, a page for readers."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import figures as figures_page

ROOT = Path(__file__).parents[1]


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used, all of its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def write(name: str, figures: dict[str, Any]) -> None:
    """Write `benchmarks/results/<name>.json`, with the machine it was measured on, and the page again."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    write_to(path, figures)
    figures_page.write()
    print(f"\nwritten to {path.relative_to(ROOT)}")


def add(name: str, figures: dict[str, Any]) -> None:
    """Write figures into `benchmarks/results/<name>.json` beside those that it has, part by part."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known.pop("machine", None)
    for part, found in figures.items():
        known[part] = known.get(part, {}) | found if isinstance(found, dict) else found
    write(name, known)


def write_to(path: Path, figures: dict[str, Any]) -> None:
    """Write figures to a file, with the machine they were measured on."""
    path.write_text(json.dumps({"machine": machine()} | figures, indent=2) + "\n")


def machine() -> dict[str, Any]:
    return {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}
