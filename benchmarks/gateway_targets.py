"""The gateway's figures beside what they are to be, as one table. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

PEERS = ("rllm", "awslabs", "openenv")
Target = tuple[str, float, str, float]
"""What it is, the figure, `≥` or `≤`, and what it is held against."""


def rows(figures: dict[str, Any]) -> list[list[str]]:
    """A row for each figure that has a target, of the parts that were measured."""
    parts: dict[str, Callable[[Any], Iterator[Target]]] = {
        "speed": _speed, "calls": _calls, "streams": _streams, "stored": _stored, "memory": _memory, "turns": _turns
    }  # fmt: skip
    found = [target for part, read in parts.items() if part in figures for target in read(figures[part])]
    return [
        [what, f"{value:.2f}", f"{how} {bound:g}", "met" if (value >= bound) == (how == "≥") else "missed"]
        for what, value, how, bound in found
    ]


def _speed(cells: dict[str, Any]) -> Iterator[Target]:
    for title, cell in cells.items():
        peers = of_peers(cell, "per_second")
        if "per_second" not in cell["ours"]:
            yield f"{title}: requests answered", 0, "≥", 1
            continue
        if peers:
            yield f"{title}: requests/s ÷ best peer", cell["ours"]["per_second"] / max(peers), "≥", _times(title)
            least = min(of_peers(cell, "cpu_ms"))
            yield f"{title}: best peer's CPU ÷ ours", least / cell["ours"]["cpu_ms"], "≥", _times(title)
        yield f"{title}: p99 ÷ p50", cell["ours"]["p99_ms"] / cell["ours"]["p50_ms"], "≤", 4


def of_peers(cell: dict[str, Any], figure: str) -> list[float]:
    """A figure of each peer that has it: one that answered nothing has hardly any."""
    return [float(cell[peer][figure]) for peer in PEERS if figure in cell.get(peer, {})]


def _times(title: str) -> float:
    return 3 if "stream" in title else 5


def _calls(cells: dict[str, Any]) -> Iterator[Target]:
    for width, cell in cells.items():
        if "direct" in cell:
            yield f"2 s a call, {width} at once: p99 ÷ direct", _over(cell), "≤", 1.05


def _streams(cells: dict[str, Any]) -> Iterator[Target]:
    carried = [int(width) for width, cell in cells.items() if "direct" in cell and _over(cell) <= 1.05]
    yield "streams of 50 tokens/s on a core", max(carried, default=0), "≥", 400


def _over(cell: dict[str, Any]) -> float:
    if not all("p99_ms" in cell[name] for name in ("ours", "direct")):
        return math.inf
    return float(cell["ours"]["p99_ms"] / cell["direct"]["p99_ms"])


def _stored(cells: dict[str, Any]) -> Iterator[Target]:
    first, *_, last = cells
    ends = [cells[count]["ours"].get("p99_ms") for count in (last, first)]
    added = ends[0] / ends[1] if all(ends) else math.inf
    yield f"p99 with {last} turns stored ÷ with none", added, "≤", 1.1


def _memory(cells: dict[str, Any]) -> Iterator[Target]:
    for tokens, cell in cells.items():
        peers = of_peers(cell, "bytes_per_turn")
        if peers:
            yield f"memory a turn, from {tokens} tokens: best peer ÷ ours", _share(min(peers), cell), "≥", 20


def _share(peer: float, cell: dict[str, Any]) -> float:
    return peer / max(1.0, float(cell["ours"].get("bytes_per_turn", math.inf)))


def _turns(cell: dict[str, Any]) -> Iterator[Target]:
    ours = cell["ours"]
    yield "late turn ÷ early, beyond reading the request", ours.get("beyond_request", math.inf), "≤", 1.5
    yield "late turn ÷ early, beyond both wires' bytes", ours.get("beyond_wires", math.inf), "≤", 1.5
