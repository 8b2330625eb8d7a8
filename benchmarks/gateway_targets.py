"""The gateway's figures beside what they are to be, as one table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

PEERS = ("rllm", "awslabs")
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
        peers = [cell[peer]["per_second"] for peer in PEERS if peer in cell]
        if peers:
            yield f"{title}: requests/s ÷ better peer", cell["ours"]["per_second"] / max(peers), "≥", _times(title)
            least = min(cell[peer]["cpu_ms"] for peer in PEERS if peer in cell)
            yield f"{title}: better peer's CPU ÷ ours", least / cell["ours"]["cpu_ms"], "≥", _times(title)
        yield f"{title}: p99 ÷ p50", cell["ours"]["p99_ms"] / cell["ours"]["p50_ms"], "≤", 4


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
    return float(cell["ours"]["p99_ms"] / cell["direct"]["p99_ms"])


def _stored(cells: dict[str, Any]) -> Iterator[Target]:
    first, *_, last = cells
    added = cells[last]["ours"]["p99_ms"] / cells[first]["ours"]["p99_ms"]
    yield f"p99 with {last} turns stored ÷ with none", added, "≤", 1.1


def _memory(cells: dict[str, Any]) -> Iterator[Target]:
    for tokens, cell in cells.items():
        peers = [cell[peer]["bytes_per_turn"] for peer in PEERS if peer in cell]
        if peers:
            yield f"memory a turn, from {tokens} tokens: better peer ÷ ours", _share(min(peers), cell), "≥", 20


def _share(peer: float, cell: dict[str, Any]) -> float:
    return peer / max(1.0, float(cell["ours"]["bytes_per_turn"]))


def _turns(cell: dict[str, Any]) -> Iterator[Target]:
    yield "late turn ÷ early, beyond reading the request", cell["ours"]["beyond_request"], "≤", 1.5
    yield "late turn ÷ early, beyond both wires' bytes", cell["ours"]["beyond_wires"], "≤", 1.5
