"""What a workload needs: the arithmetic, and that its unit costs are the measured ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from agentcore_rl_toolkit.deploy.capacity import (
    Prices,
    Quotas,
    UnitCosts,
    Workload,
    changed,
    cost_of_usage,
    plan,
)
from agentcore_rl_toolkit.errors import ConfigError

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def test_ten_thousand_sessions_by_hand() -> None:
    workload = Workload(
        sessions=10_000, turns=20, turn_seconds=9.75, start_seconds=5, session_cpu_seconds=4, session_gb=1, result_kb=10
    )
    units = UnitCosts(
        client_cpu_ms=2, client_kb=20, gateway_cpu_ms=1, gateway_kb=2, runtime_requests=2, s3_reads=1, sqs_requests=2
    )
    needed = plan(workload, units, Quotas(requests_per_second=10, sessions=5000), Prices())
    assert needed.rollouts_per_second == 50  # 10,000 sessions of 200 s
    assert (needed.runtime_requests_per_second, needed.accounts, needed.runtimes) == (100, 2, 10)
    assert (needed.client_cores, needed.client_processes, needed.client_mb) == (0.1, 1, 200)
    assert needed.invoke_threads == 250
    assert (needed.gateway_calls_per_second, needed.gateway_cores, needed.gateway_processes) == (1000, 1, 2)
    assert needed.gateway_mb == 400
    assert (needed.s3_puts, needed.s3_reads, needed.sqs_requests) == (180_000, 180_000, 360_000)
    assert (needed.vcpu_hours, needed.gb_hours) == (200, 10_000)
    assert needed.dollars == pytest.approx(
        {
            "runtime_cpu": 200 * 0.0895,
            "runtime_memory": 10_000 * 0.00945,
            "s3_requests": 180 * 0.005 + 180 * 0.0004,
            "s3_storage": 1.8 * 0.023,
            "sqs": 0.36 * 0.40,
        }
    )
    assert needed.dollars_per_1000_rollouts == pytest.approx(sum(needed.dollars.values()) / 180)


def test_without_a_queue_there_are_more_reads_and_no_messages() -> None:
    with_queue, without = (plan(Workload(with_queue=queue)) for queue in (True, False))
    assert without.sqs_requests == without.dollars["sqs"] == 0
    assert without.s3_reads > with_queue.s3_reads


@pytest.mark.parametrize(
    ("quotas", "needs"),
    [
        ({}, (8, 16)),  # 200 new sessions a second, 25 in an account; 400 requests, 25 to a runtime
        ({"new_sessions_per_second": 1000}, (1, 16)),
        ({"new_sessions_per_second": 1000, "sessions": 100}, (10, 16)),
        ({"new_sessions_per_second": 1000, "account_requests_per_second": 20}, (20, 20)),
    ],
)
def test_the_tightest_quota_decides(quotas: dict[str, float], needs: tuple[int, int]) -> None:
    quick = Workload(sessions=1000, turns=1, turn_seconds=4, start_seconds=1)
    needed = plan(quick, quotas=changed(Quotas(), quotas))
    assert (needed.accounts, needed.runtimes) == needs


def test_a_small_session_is_billed_with_the_least_memory() -> None:
    small, least = (plan(Workload(session_gb=gb)) for gb in (0.01, 0.128))
    assert small.dollars == least.dollars
    assert small.gb_hours == 128


@given(sessions=some.integers(1, 10**6), turns=some.integers(1, 200), seconds=some.floats(0.1, 600))
def test_twice_the_sessions_cost_twice_as_much(sessions: int, turns: int, seconds: float) -> None:
    one, two = (plan(Workload(sessions=n * sessions, turns=turns, turn_seconds=seconds)) for n in (1, 2))
    assert sum(two.dollars.values()) == pytest.approx(2 * sum(one.dollars.values()))
    assert two.dollars_per_1000_rollouts == pytest.approx(one.dollars_per_1000_rollouts)
    assert one.runtimes <= two.runtimes <= 2 * one.runtimes


def test_what_was_used_costs_what_was_planned() -> None:
    workload = Workload(sessions=1000, turns=10, turn_seconds=10, start_seconds=0)
    units = UnitCosts(s3_reads=2, sqs_requests=3)
    needed = plan(workload, units)
    hourly = needed.s3_puts
    used: dict[str, Any] = {
        "sessions": hourly,
        "session_seconds": 1000 * 3600,
        "store_requests": {"s3:GetObject": hourly, "s3:ListObjectsV2": hourly, "sqs:ReceiveMessage": 2 * hourly},
    }
    assert cost_of_usage(used, workload) == pytest.approx(dict(needed.dollars))
    del used["store_requests"]["sqs:ReceiveMessage"]
    assert cost_of_usage(used, workload)["sqs"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        *({"sessions": 0}, {"sessions": 10**400}, {"turns": -1}, {"turn_seconds": 0}, {"turn_seconds": float("inf")}),
        *({"turn_seconds": 1e-320}, {"start_seconds": -1}, {"session_gb": float("nan")}, {"session_gb": 9}),
        {"session_cpu_seconds": 500},
    ],
)
def test_a_workload_that_can_not_be(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        plan(Workload(**changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(({"gb": 1}, "hint: choose vcpu_hour, gb_hour"), ({"gb_hour": "x"}, "must be a number")),
        *(({"gb_hour": -1}, "from 0 to"), ({"gb_hour": 1e308}, "to 1e[+]09, not 1e[+]308")),
    ],
)
def test_prices_that_can_not_be(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        changed(Prices(), changes)
    assert changed(Prices(), {"gb_hour": 0}) == dataclasses.replace(Prices(), gb_hour=0)
    with pytest.raises(ConfigError, match="sessions must be a number from 1e-06"):
        changed(Quotas(), {"sessions": 0})


def test_the_unit_costs_are_the_measured_ones() -> None:
    """Planned costs are no lower than measured ones, and at most twice as high."""
    scale = json.loads((RESULTS / "scale.json").read_text())["client"]
    gateway = json.loads((RESULTS / "gateway.json").read_text())
    units = UnitCosts()
    measured = {
        "client_cpu_ms": scale["in_flight"]["client_cpu_ms_each"],
        "client_kb": scale["in_flight"]["kb_each"],
        "gateway_cpu_ms": gateway["speed"]["512 plain different"]["ours"]["cpu_ms"],
        "gateway_kb": gateway["memory"]["8192"]["ours"]["bytes_per_turn"] / 1000,
        "runtime_requests": scale["requests"]["with SQS"]["runtime"],
        "s3_reads": scale["requests"]["with SQS"]["s3"],
        "s3_reads_without_queue": scale["requests"]["without"]["s3"],
        "sqs_requests": scale["requests"]["with SQS"]["sqs"],
    }
    for name, figure in measured.items():
        assert figure <= getattr(units, name) * 1.05 <= 2.1 * figure, f"{name}: measured {figure}"
