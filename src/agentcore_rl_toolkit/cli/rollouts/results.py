"""List the results in a store, as a table or as JSON lines. Exits with 1 if there are none."""

from __future__ import annotations

import argparse
import os

from ...agent.result import Result, read_result
from ...common.text_table import format_table
from ...errors import ConfigError, KeyInvalid, ResultUnreadable, RewardInvalid
from ...store import Store, absolute_store, open_store
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
    keys = [key for key in store.keys(f"{args.exp_id}/" if args.exp_id else "") if _is_result(key)]
    if not keys:
        say(f"no results in {store.url}" + (f" for experiment {args.exp_id!r}" if args.exp_id else ""))
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


def _is_result(key: str) -> bool:
    """Whether a key has the form of a result's: folders hold other files too."""
    try:
        RolloutId.from_key(key)
    except KeyInvalid:
        return False
    return True


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
