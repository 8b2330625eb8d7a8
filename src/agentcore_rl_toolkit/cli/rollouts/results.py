"""List the results in a store, as a table or as JSON lines. Exits with 1 if there are none."""

from __future__ import annotations

import argparse
import os

from ...agent.result import Result, read_result
from ...errors import ResultUnreadable, RewardInvalid
from ...store import Store, open_store
from ..flags import say
from ..terminal.table import format_table

HELP = "list the results in a store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a bucket, s3://bucket/prefix, or a folder")
    parser.add_argument("--exp", metavar="ID", help="list only this experiment (default: all)")
    parser.add_argument("--json", action="store_true", help="print whole results, one JSON object per line")


def run(args: argparse.Namespace) -> int:
    store = open_store(os.path.abspath(args.store) if os.path.isdir(args.store) else args.store)
    keys = [key for key in store.keys(f"{args.exp}/" if args.exp else "") if key.endswith(".json")]
    if not keys:
        say(f"no results in {store.url}" + (f" for experiment {args.exp!r}" if args.exp else ""))
        return 1
    if not args.json:
        print(results_table(store, keys))
        return 0
    for key in keys:
        try:
            print(read_result(store, key).to_bytes().decode())
        except (ResultUnreadable, ValueError) as error:
            say(f"left out: {error}")
    return 0


def results_table(store: Store, keys: list[str]) -> str:
    """The results under `keys`, a row each."""
    return format_table(["result", "status", "reward", "seconds", "stop reason"], [_row(store, key) for key in keys])


def _row(store: Store, key: str) -> list[str]:
    try:
        result = read_result(store, key)
    except ResultUnreadable as error:
        return [key, "unreadable", "", "", str(error)]
    stop_reason = str(result.document.get("stop_reason", "")).splitlines() or [""]
    seconds = "-" if result.seconds is None else f"{result.seconds:.2f}"
    return [key, result.status.value, _reward(result), seconds, stop_reason[0][:60]]


def _reward(result: Result) -> str:
    try:
        rewards = result.rewards
    except RewardInvalid:
        return "?"
    if rewards is None:
        return "-"
    return f"{rewards:g}" if isinstance(rewards, float) else " ".join(f"{r:g}" for r in rewards)
