"""What a number of concurrent sessions needs on AWS, and what it costs. Pure arithmetic: calls no service.

A steady state is planned: a session that ends is followed by another. The unit costs are what the benchmarks measured
(a test compares them with `benchmarks/results`), the prices AWS's list prices for us-east-1 on demand, and the quotas
AWS's defaults, both of September 2026. All of them can be replaced. Inference servers, gateways' machines and data
transfer are not priced.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ConfigError

T = TypeVar("T")

BUSY = 0.7
"""The share of a core that a process is planned to use: the rest is for bursts."""
_LEAST, _MOST = 1e-6, 1e9
"""What any amount may be, so that no sum is infinite."""
_MOST_CPUS, _MOST_GB = 2, 8
"""AWS's limits of a session."""
_BILLED_GB = 0.128
"""AWS bills at least so much memory."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is to run."""

    sessions: int = 1000
    """Sessions at the same time."""
    turns: int = 20
    """Model calls of a session."""
    turn_seconds: float = 10.0
    """Seconds of a turn, model call and tools together."""
    start_seconds: float = 5.0
    """Seconds until a session's container answers."""
    session_cpu_seconds: float = 6.0
    """Seconds of CPU that a session uses. Waiting for a model uses none."""
    session_gb: float = 0.5
    """The largest memory of a session, in GB."""
    result_kb: float = 20.0
    """The size of a stored result, in KB."""
    with_queue: bool = True
    """Whether results are announced on SQS."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "with_queue":
                _check_amount(name, value, 0 if name == "start_seconds" else _LEAST)
        if self.session_gb > _MOST_GB:
            raise ConfigError(f"session_gb is {self.session_gb:g}; a session on AWS has at most {_MOST_GB} GB")

    @property
    def session_seconds(self) -> float:
        return self.start_seconds + self.turns * self.turn_seconds


@dataclass(frozen=True, kw_only=True)
class UnitCosts:
    """What one rollout, or one call, costs the parts that run beside the sessions."""

    client_cpu_ms: float = 3.5
    """CPU of the client for a rollout."""
    client_kb: float = 25.0
    """Memory of the client for a rollout in flight."""
    gateway_cpu_ms: float = 0.6
    """CPU of the gateway for a model call."""
    gateway_kb: float = 1.3
    """Memory of the gateway for a recorded turn."""
    runtime_requests: float = 2.0
    """Requests to the runtime for a rollout: the invoke and the stop."""
    s3_reads: float = 1.05
    """Requests to S3 for a rollout by the client, with announcements."""
    s3_reads_without_queue: float = 1.5
    """The same without announcements, where the client looks for results."""
    sqs_requests: float = 3.0
    """Requests to SQS for a rollout: one to send, the rest to receive and delete."""


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """AWS's limits of an account in one region, which it raises on request, and the client's own of a runtime."""

    sessions: float = 5000
    """Active sessions: 5,000 in us-east-1 and us-west-2, 2,500 elsewhere."""
    new_sessions_per_second: float = 25.0
    account_requests_per_second: float = 1000.0
    """Invokes and stops, to all runtimes of an account."""
    requests_per_second: float = 25.0
    """Invokes and stops that a client sends each runtime (`--tps-limit`)."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """List prices in dollars, us-east-1, on demand."""

    vcpu_hour: float = 0.0895
    """AgentCore Runtime, for CPU that is used."""
    gb_hour: float = 0.00945
    """AgentCore Runtime, for the largest memory so far, while a session lives."""
    s3_put_1000: float = 0.005
    s3_get_1000: float = 0.0004
    s3_gb_month: float = 0.023
    sqs_million: float = 0.40


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a workload needs. Amounts that have no other unit are per hour."""

    sessions: int
    rollouts_per_second: float
    accounts: int
    """Accounts, or times the default quotas to ask AWS for."""
    runtimes: int
    """ARNs to name with `--runtime`, so that the client sends each no more than `--tps-limit`."""
    runtime_requests_per_second: float
    client_processes: int
    client_cores: float
    client_mb: float
    invoke_threads: int
    """Threads of the clients that wait for sessions to start."""
    gateway_processes: int
    gateway_calls_per_second: float
    gateway_cores: float
    gateway_mb: float
    s3_puts: float
    s3_reads: float
    s3_gb: float
    sqs_requests: float
    vcpu_hours: float
    gb_hours: float
    dollars: Mapping[str, float]
    """For an hour, by billed item."""
    dollars_per_1000_rollouts: float


def plan(
    workload: Workload,
    units: UnitCosts | None = None,
    quotas: Quotas | None = None,
    prices: Prices | None = None,
) -> Plan:
    """Plan a workload.

    >>> needed = plan(Workload(sessions=10_000, turns=20, turn_seconds=10, start_seconds=0))
    >>> needed.rollouts_per_second, needed.accounts, needed.runtimes, needed.gateway_calls_per_second
    (50.0, 2, 4, 1000.0)
    """
    units, quotas, prices = units or UnitCosts(), quotas or Quotas(), prices or Prices()
    cpu, seconds = workload.session_cpu_seconds, workload.session_seconds
    if cpu > _MOST_CPUS * seconds:
        text = f"session_cpu_seconds is {cpu:g}, in a session of {seconds:g} s"
        raise ConfigError(
            text, hint=f"a session on AWS has at most {_MOST_CPUS} vCPUs: lower it, or raise turn_seconds"
        )
    rate = workload.sessions / workload.session_seconds
    hourly, requests, calls = rate * 3600, rate * units.runtime_requests, rate * workload.turns
    shares = (
        workload.sessions / quotas.sessions,
        rate / quotas.new_sessions_per_second,
        requests / quotas.account_requests_per_second,
    )
    accounts = math.ceil(max(shares))
    client_cores, gateway_cores = rate * units.client_cpu_ms / 1000, calls * units.gateway_cpu_ms / 1000
    reads = hourly * (units.s3_reads if workload.with_queue else units.s3_reads_without_queue)
    sent = hourly * units.sqs_requests if workload.with_queue else 0.0
    hours = float(workload.sessions)
    dollars = cost(hourly, hours, s3_reads=reads, sqs_requests=sent, workload=workload, prices=prices)
    return Plan(
        sessions=workload.sessions,
        rollouts_per_second=rate,
        accounts=accounts,
        runtimes=max(accounts, math.ceil(requests / quotas.requests_per_second)),
        runtime_requests_per_second=requests,
        client_processes=math.ceil(client_cores / BUSY),
        client_cores=client_cores,
        client_mb=workload.sessions * units.client_kb / 1000,
        invoke_threads=math.ceil(rate * workload.start_seconds),
        gateway_processes=math.ceil(gateway_cores / BUSY),
        gateway_calls_per_second=calls,
        gateway_cores=gateway_cores,
        gateway_mb=workload.sessions * workload.turns * units.gateway_kb / 1000,
        s3_puts=hourly,
        s3_reads=reads,
        s3_gb=hourly * workload.result_kb / 1e6,
        sqs_requests=sent,
        vcpu_hours=hourly * workload.session_cpu_seconds / 3600,
        gb_hours=workload.sessions * max(workload.session_gb, _BILLED_GB),
        dollars=dollars,
        dollars_per_1000_rollouts=sum(dollars.values()) / hourly * 1000,
    )


def cost(
    rollouts: float,
    session_hours: float,
    *,
    s3_reads: float,
    sqs_requests: float,
    workload: Workload,
    prices: Prices,
) -> dict[str, float]:
    """Dollars by billed item; CPU, memory and sizes of a session come from the workload.

    Stored results are billed for a month, however long they are kept after that.
    """
    return {
        "runtime_cpu": rollouts * workload.session_cpu_seconds / 3600 * prices.vcpu_hour,
        "runtime_memory": session_hours * max(workload.session_gb, _BILLED_GB) * prices.gb_hour,
        "s3_requests": rollouts / 1000 * prices.s3_put_1000 + s3_reads / 1000 * prices.s3_get_1000,
        "s3_storage": rollouts * workload.result_kb / 1e6 * prices.s3_gb_month,
        "sqs": sqs_requests / 1e6 * prices.sqs_million,
    }


def cost_of_usage(used: Mapping[str, Any], workload: Workload, prices: Prices | None = None) -> dict[str, float]:
    """Dollars for what a run used, by the `used` of its summary.json. Sessions send one message each.

    A judge's dollars are those that it counted by its own price.
    """
    requests = used["store_requests"]
    received = sum(count for name, count in requests.items() if name.startswith("sqs:"))
    read = sum(count for name, count in requests.items() if name.startswith("s3:"))
    sent, hours = received + used["sessions"] if received else 0, used["session_seconds"] / 3600
    prices = prices or Prices()
    dollars = cost(used["sessions"], hours, s3_reads=read, sqs_requests=sent, workload=workload, prices=prices)
    return dollars | ({"judge": used["judge"]["dollars"]} if "judge" in used else {})


def changed(values: T, changes: Mapping[str, Any]) -> T:
    """Unit costs, quotas or prices with some of them replaced; refuses other names, and values that are not numbers."""
    names = [spec.name for spec in dataclasses.fields(values)]  # type: ignore[arg-type]
    for name, value in changes.items():
        if name not in names:
            raise ConfigError(f"{type(values).__name__} has no {name!r}", hint=f"choose {', '.join(names)}")
        _check_amount(name, value, _LEAST if isinstance(values, Quotas) else 0)
    return dataclasses.replace(values, **changes)  # type: ignore[type-var]


def _check_amount(name: str, value: Any, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= _MOST:
        shown = f"{value:g}" if isinstance(value, float) else str(value)[:40]
        raise ConfigError(f"{name} must be a number from {least:g} to {_MOST:g}, not {shown}")
