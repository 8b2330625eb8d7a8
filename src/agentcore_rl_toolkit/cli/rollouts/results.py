"""List the results in a store, as a table or as JSON lines. Exits with 1 if there are none."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator

from ...agent.result import Result, stored_results
from ...common.text_table import format_table
from ...errors import ConfigError, RewardInvalid
from ...store import absolute_store, open_store
from ...types import RolloutId
from ..flags import say
from .rollout import STORE

HELP = "list the results in a store"
EXAMPLES = ("agentcore-rl results", "agentcore-rl results s3://bucket/prefix --exp-id base --json | jq .rewards")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = f"a bucket, s3://bucket/prefix, or a folder (default: {STORE})"
    parser.add_argument("store", nargs="?", default=STORE, help=help)
    parser.add_argument("--exp-id", help="list only this experiment (default: all)")
    parser.add_argument("--json", action="store_true", help="print whole results, one JSON object per line")


def run(args: argparse.Namespace) -> int:
    args.store = absolute_store(args.store)
    if args.store.startswith("/") and not os.path.isdir(args.store):
        raise ConfigError(f"{args.store} does not exist", hint="name the store that --store named")
    store = open_store(args.store)
    found = stored_results(store, f"{args.exp_id}/" if args.exp_id else "")
    listed = False
    for line in _json_lines(found) if args.json else filter(None, [results_table(found)]):
        listed = True
        print(line)
    if not listed:
        say(f"no results in {store.url}" + (f" for experiment {args.exp_id!r}" if args.exp_id else ""))
    return 0 if listed else 1


def results_table(found: Iterable[tuple[RolloutId, Result | Exception]]) -> str:
    """A table of stored results; empty if there are none."""
    rows = [_row(id.result_key, result) for id, result in found]
    return format_table(["result", "status", "reward", "seconds", "stop reason"], rows) if rows else ""


def _json_lines(found: Iterable[tuple[RolloutId, Result | Exception]]) -> Iterator[str]:
    for _, result in found:
        if isinstance(result, Result):
            yield result.to_bytes().decode()
        else:
            say(f"left out: {result}")


def _row(key: str, result: Result | Exception) -> list[str]:
    if isinstance(result, Exception):
        return [key, "unreadable", "", "", str(result)]
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
