"""`agentcore-rl plan`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.cli import main

USED = {"sessions": 100, "session_seconds": 3600.0, "bytes_read": 1000, "store_requests": {"s3:GetObject": 105}}


def plan(capsys: pytest.CaptureFixture[str], *args: Any) -> str:
    assert main(["plan", *map(str, args)]) == 0
    return capsys.readouterr().out


def test_a_table_of_three_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    out = plan(capsys)
    assert "1,000 sessions" in out
    assert "100,000 sessions" in out
    assert "$ for 1,000 rollouts" in out


def test_json_has_every_assumption(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (
        "--sessions",
        500,
        "--turns",
        4,
        "--price",
        "vcpu_hour=1",
        "--unit",
        "client_kb=7",
        "--quota",
        "sessions=100",
    )
    found = json.loads(plan(capsys, *flags, "--without-queue", "--json"))
    assert (found["prices"]["vcpu_hour"], found["units"]["client_kb"], found["quotas"]["sessions"]) == (1, 7, 100)
    assert (found["workload"]["turns"], found["workload"]["with_queue"]) == (4, False)
    (one,) = found["plans"]
    assert (one["sessions"], one["accounts"], one["client_mb"], one["sqs_requests"]) == (500, 5, 3.5, 0)
    assert one["dollars_per_hour"] == pytest.approx(sum(one["dollars"].values()))


def test_what_a_run_used_is_priced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"used": USED}))
    found = json.loads(plan(capsys, "--used", summary, "--session-gb", 2, "--json"))
    assert found["dollars"]["runtime_memory"] == pytest.approx(2 * 0.00945)
    assert found["total"] == pytest.approx(sum(found["dollars"].values()))
    assert "s3:GetObject" in plan(capsys, "--used", summary)


def test_a_judge_is_a_part_of_what_a_run_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = tmp_path / "summary.json"
    judge = {"calls": 1234, "cached": 5, "input_tokens": 100, "output_tokens": 10, "dollars": 2.5}
    summary.write_text(json.dumps({"used": USED | {"judge": judge}}))
    found = json.loads(plan(capsys, "--used", summary, "--json"))
    assert found["dollars"]["judge"] == 2.5
    assert found["total"] == pytest.approx(sum(found["dollars"].values()))
    assert "judge calls 1,234" in " ".join(plan(capsys, "--used", summary).split())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"used": 3}', '{"used": {"sessions": 1}}'])
def test_a_summary_that_says_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    assert main(["plan", "--used", str(tmp_path / "summary.json")]) == 1
    assert "hint: name the summary.json of a run" in capsys.readouterr().err
