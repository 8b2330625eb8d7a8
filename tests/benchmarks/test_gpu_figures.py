"""Figures of a GPU: a case says where its own run was, and the page stands whatever cases there are."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HERE = {"machine": {"cores": 16}, "gpu": "NVIDIA H200, 580", "versions": {"trl": "1.16.0"}, "date": "2026-11-18"}
RECORDED: dict[str, Any] = json.loads((BENCHMARKS / "results" / "gpu.json").read_text())["cases"]
CASES = {name: case | HERE for name, case in RECORDED.items()}
STEP = {"step_s": 9.0, "tokens_per_rollout": 9.0}
ASYNCHRONOUS = HERE | {"model": "tiny", "settings": {"max_tokens": 64, "sleep": 0.3}, "runs": {}}


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in ("gpu", "gpu_figures", "gpu_verl", "report", "figures", "scale_targets"):
        sys.modules.pop(name, None)


def lines(benchmark: Any, cases: dict[str, Any], runs: dict[str, Any] | None = None) -> list[str]:
    def table(header: Any, rows: Iterable[Iterable[str]]) -> str:
        return "\n".join(" | ".join(row) for row in rows)

    found = ASYNCHRONOUS | {"runs": runs or {}}
    return "\n".join(benchmark("gpu_figures").gpu_section({"cases": cases}, found, table)).splitlines()


def test_a_case_that_runs_again_leaves_the_others_with_their_gpu(benchmark: Any, tmp_path: Path) -> None:
    results = tmp_path / "gpu.json"
    results.write_text(json.dumps({"cases": CASES}))
    bench = benchmark("gpu").Bench(tmp_path, results, argparse.Namespace(trl=None, sglang=None, smollm2=None))
    bench.record("steps-trl", lambda: STEP)
    after = json.loads(results.read_text())["cases"]
    assert after.keys() == CASES.keys() | {"steps-trl"}
    assert all(after[name] == case for name, case in CASES.items() if name != "steps-trl")
    assert after["steps-trl"]["gpu"] == benchmark("gpu").gpu_name()
    assert after["steps-trl"].keys() > {*HERE, *STEP}


def test_a_row_says_where_it_was_measured_if_others_were_elsewhere(benchmark: Any) -> None:
    alike = dict.fromkeys(("steps-trl", "steps-colocate"), STEP | HERE)
    elsewhere = {"gpu": "NVIDIA A100, 1", "date": "2027-01-01", "versions": {}}
    (row,) = [line for line in lines(benchmark, alike) if line.startswith("TRL alone")]
    assert row.endswith("| 2026-11-18")
    mixed = lines(benchmark, alike | {"steps-trl": STEP | HERE | elsewhere})
    (row, other) = [line for line in mixed if line.startswith(("TRL alone", "ours, `--vllm"))]
    assert row.endswith("| 2027-01-01, NVIDIA A100, trl unknown")
    assert other.endswith("| 2026-11-18, NVIDIA H200, trl 1.16.0")


@pytest.mark.parametrize("name", sorted(RECORDED.keys() - {"server-on-one-gpu"}))
def test_a_case_may_fail_or_be_left_out(benchmark: Any, name: str) -> None:
    whole = lines(benchmark, CASES)
    failed = lines(benchmark, CASES | {name: HERE | {"error": "RuntimeError: code 1"}})
    left_out = lines(benchmark, {other: case for other, case in CASES.items() if other != name})
    assert any("failed" in line for line in set(failed) - set(whole))
    assert len(left_out) < len(whole) or name.startswith("contract")


def test_the_page_stands_without_a_single_case(benchmark: Any) -> None:
    assert "engine, K = 0 | failed | – | –" in lines(benchmark, {}, {"engine, K = 0": {"error": "no end after 240 s"}})
