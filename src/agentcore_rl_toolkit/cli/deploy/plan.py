"""Estimate what concurrent sessions need on AWS, and what they cost.

Prints clients, gateways, quotas, requests and dollars for an hour of that many sessions, from measured unit costs and
AWS's list prices. `--used SUMMARY` prices a run that has ended. Calls no service.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...common.text_table import format_table
from ...deploy.capacity import Plan, Prices, Quotas, UnitCosts, Workload, changed, cost_of_usage, plan
from ...errors import ConfigError
from ..flags import read_pairs

HELP = "estimate what concurrent sessions need on AWS, and what they cost"
EXAMPLES = (
    "agentcore-rl plan --sessions 10000 --turns 20",
    "agentcore-rl plan --sessions 2000 --turn-seconds 4 --session-gb 1 --price vcpu_hour=0.08 --json",
    "agentcore-rl plan --used runs/train/summary.json",
)
_SESSIONS = (1000, 10_000, 100_000)
_ROWS: tuple[tuple[str, Callable[[Plan], Any]], ...] = (
    ("rollouts a second", lambda it: f"{it.rollouts_per_second:,.1f}"),
    ("requests a second to runtimes", lambda it: f"{it.runtime_requests_per_second:,.0f}"),
    ("runtimes (--runtime)", lambda it: it.runtimes),
    ("accounts, or times the quotas of one", lambda it: it.accounts),
    ("client processes; cores; MB", lambda it: f"{it.client_processes}; {it.client_cores:.2f}; {it.client_mb:,.0f}"),
    ("threads that wait for starts", lambda it: it.invoke_threads),
    ("model calls a second", lambda it: f"{it.gateway_calls_per_second:,.0f}"),
    (
        "gateway processes; cores; MB",
        lambda it: f"{it.gateway_processes}; {it.gateway_cores:.1f}; {it.gateway_mb:,.0f}",
    ),
    ("S3 writes; reads", lambda it: f"{it.s3_puts:,.0f}; {it.s3_reads:,.0f}"),
    ("SQS requests", lambda it: f"{it.sqs_requests:,.0f}"),
    ("AgentCore vCPU-hours; GB-hours", lambda it: f"{it.vcpu_hours:,.0f}; {it.gb_hours:,.0f}"),
    ("$ AgentCore CPU", lambda it: f"{it.dollars['runtime_cpu']:,.2f}"),
    ("$ AgentCore memory", lambda it: f"{it.dollars['runtime_memory']:,.2f}"),
    ("$ S3", lambda it: f"{it.dollars['s3_requests'] + it.dollars['s3_storage']:,.2f}"),
    ("$ SQS", lambda it: f"{it.dollars['sqs']:,.2f}"),
    ("$ in all", lambda it: f"{sum(it.dollars.values()):,.2f}"),
    ("$ for 1,000 rollouts", lambda it: f"{it.dollars_per_1000_rollouts:,.3f}"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = Workload()
    help = "sessions at the same time; may be repeated (default: 1000, 10000 and 100000)"
    parser.add_argument("--sessions", type=int, action="append", metavar="N", help=help)
    parser.add_argument("--turns", type=int, default=known.turns, help=f"model calls of a session ({known.turns})")
    for name, help in (
        ("turn_seconds", "seconds of a turn, model call and tools together"),
        ("start_seconds", "seconds until a session's container answers"),
        ("session_cpu_seconds", "seconds of CPU that a session uses; waiting uses none"),
        ("session_gb", "the largest memory of a session, in GB"),
        ("result_kb", "the size of a stored result, in KB"),
    ):
        value = getattr(known, name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=float, default=value, metavar="X", help=f"{help} (default: {value:g})")
    parser.add_argument("--without-queue", action="store_true", help="results are looked for, not announced on SQS")
    for flag, kind in (("--unit", UnitCosts), ("--quota", Quotas), ("--price", Prices)):
        names = ", ".join(spec.name for spec in dataclasses.fields(kind))
        help = f"replace one of {names}; may be repeated"
        parser.add_argument(flag, action="append", default=[], metavar="NAME=NUMBER", help=help)
    parser.add_argument("--used", metavar="SUMMARY", help="price what a run used: its summary.json, or eval's --output")
    parser.add_argument("--json", action="store_true", help="print JSON, with every assumption")


def run(args: argparse.Namespace) -> int:
    units = changed(UnitCosts(), read_pairs("--unit", args.unit))
    quotas = changed(Quotas(), read_pairs("--quota", args.quota))
    prices = changed(Prices(), read_pairs("--price", args.price))
    names = {spec.name for spec in dataclasses.fields(Workload)} - {"sessions", "with_queue"}
    given: dict[str, Any] = {name: getattr(args, name) for name in names} | {"with_queue": not args.without_queue}
    workloads = [Workload(sessions=sessions, **given) for sessions in args.sessions or _SESSIONS]
    if args.used:
        return _show_usage(args, _read_usage(args.used), workloads[0], prices)
    plans = [plan(workload, units, quotas, prices) for workload in workloads]
    if args.json:
        assumed: dict[str, Any] = {"units": units, "quotas": quotas, "prices": prices, "workload": workloads[0]}
        figures = [dataclasses.asdict(one) | {"dollars_per_hour": sum(one.dollars.values())} for one in plans]
        print(json.dumps({**{name: vars(value) for name, value in assumed.items()}, "plans": figures}))
        return 0
    heads = [f"{one.sessions:,} sessions" for one in plans]
    print(format_table(["an hour of", *heads], [[name, *(str(show(one)) for one in plans)] for name, show in _ROWS]))
    return 0


def _read_usage(path: str) -> dict[str, Any]:
    """The `used` of a run's summary."""
    try:
        found = json.loads(Path(path).read_text())
        used = found["used"]
        cost_of_usage(used, Workload())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "name the summary.json of a run, or the file of eval --output"
        raise ConfigError(f"{path} does not say what a run used: {error!r}", hint=hint) from None
    return dict(used)


def _show_usage(args: argparse.Namespace, used: dict[str, Any], workload: Workload, prices: Prices) -> int:
    dollars = cost_of_usage(used, workload, prices)
    if args.json:
        print(json.dumps({"used": used, "dollars": dollars, "total": sum(dollars.values())}))
        return 0
    counts = {name: f"{value:,.0f}" for name, value in used.items() if isinstance(value, (int, float))}
    counts |= {name: f"{value:,.0f}" for name, value in used["store_requests"].items()}
    counts |= {f"judge {name}": f"{value:,.0f}" for name, value in used.get("judge", {}).items() if name != "dollars"}
    counts |= {f"$ {name.replace('_', ' ')}": f"{value:,.4f}" for name, value in dollars.items()}
    counts["$ in all"] = f"{sum(dollars.values()):,.4f}"
    print(format_table(["the run used", ""], [[name.replace("_", " "), value] for name, value in counts.items()]))
    return 0
