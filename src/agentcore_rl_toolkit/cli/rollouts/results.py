"""`agentcore-rl results STORE`: what landed in a store, as a table or as JSON lines."""

from __future__ import annotations

import argparse
import os
import sys

from ...agent.result import Result, read_result
from ...errors import ResultUnreadable, RewardInvalid
from ...store import Store, open_store
from ..terminal.table import format_table


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("results", help="list the results in a store", description=__doc__)
    parser.add_argument("store", help="bucket, s3://bucket/prefix, or a directory")
    parser.add_argument("--exp", metavar="ID", help="only this experiment")
    parser.add_argument("--json", action="store_true", help="whole results, one JSON object per line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the results; exit with 1 if there are none."""
    name = os.path.abspath(args.store) if os.path.isdir(args.store) else args.store
    store = open_store(name)
    keys = [key for key in store.keys(f"{args.exp}/" if args.exp else "") if key.endswith(".json")]
    if args.json:
        for key in keys:
            _print(store, key)
    elif keys:
        print(results_table(store, keys))
    if not keys:
        print(f"no results in {store.url}" + (f" for experiment {args.exp!r}" if args.exp else ""), file=sys.stderr)
    return 0 if keys else 1


def _print(store: Store, key: str) -> None:
    try:
        print(read_result(store, key).to_bytes().decode())
    except (ResultUnreadable, ValueError) as error:
        print(f"left out: {error}", file=sys.stderr)


def results_table(store: Store, keys: list[str]) -> str:
    """One line per result: where it is, how it ended, its reward, how long it took."""
    return format_table(["result", "status", "reward", "seconds", "stop reason"], [_row(store, key) for key in keys])


def _row(store: Store, key: str) -> list[str]:
    try:
        result = read_result(store, key)
    except ResultUnreadable as error:
        return [key, "unreadable", "", "", str(error)]
    stop_reason = str(result.document.get("stop_reason", "")).splitlines()
    return [
        key,
        result.status.value,
        _reward(result),
        "-" if result.seconds is None else f"{result.seconds:.2f}",
        (stop_reason or [""])[0][:60],
    ]


def _reward(result: Result) -> str:
    try:
        rewards = result.rewards
    except RewardInvalid:
        return "?"
    if rewards is None:
        return "-"
    return f"{rewards:g}" if isinstance(rewards, float) else " ".join(f"{r:g}" for r in rewards)
