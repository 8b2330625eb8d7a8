"""The gateway's benchmark when a peer answers nothing: it says so, and goes on."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SILENT = {"requests": 0, "errors": {"500": 3}}
WELL = {
    "requests": 5, "per_second": 10.0, "cpu_ms": 1.0, "cores": 0.1, "p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0,
    "first_p50_ms": 1.0, "gap_p99_ms": 1.0, "errors": {}, "quiet_p99_ms": 1.0, "reading_p99_ms": 1.0,
    "reading_max_ms": 1.0, "read_ms": 1.0, "turns": 5, "bytes_per_turn": 100.0, "disk_bytes_per_turn": 100.0,
    "early": {"cpu_ms": 1.0, "request_bytes": 10}, "late": {"cpu_ms": 2.0, "request_bytes": 20},
}  # fmt: skip
PARTS = ["speed", "calls", "streams", "stored", "read", "memory", "turns"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("gateway")
    for name in ("gateway", "gateway_parts", "gateway_targets", "report", "figures"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("silent", ["openenv", "rllm awslabs openenv", "ours", "direct"])
def test_silence_is_a_row_of_the_table(
    part: str, silent: str, benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, job: dict[str, Any]) -> dict[str, Any]:
        ended = {"early": {"cpu_ms": 0.0, "request_bytes": 10}, "late": {"cpu_ms": 0.0, "request_bytes": 20}}
        return SILENT | (ended if job["do"] == "turn_cost" else {}) if name in silent.split() else dict(WELL)

    monkeypatch.setattr(benchmark, "run", run)
    names = ",".join(benchmark.GATEWAYS)
    bench = benchmark.Bench(argparse.Namespace(quick=True, gateways=names, repeats=2, seconds=1.0))
    figures = {part: getattr(bench, part)()}
    targets = benchmark.gateway_targets.rows(figures)
    said = capsys.readouterr().out
    assert "3×500" in said or part == "turns" or (silent == "direct" and part in ("stored", "read", "memory"))
    assert all("met" in row[-1] or "missed" in row[-1] for row in targets)
