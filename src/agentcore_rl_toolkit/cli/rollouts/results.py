"""List the results in a store, as a table or as JSON lines. Exits with 1 if there are none."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator

from ...agent.result import Result, read_result
from ...common.text_table import format_table
from ...errors import ConfigError, KeyInvalid, ResultUnreadable, RewardInvalid
from ...store import Store, absolute_store, open_store
from ...types import RolloutId
from ..flags import say
from .rollout import STORE

_MARKS = {"_rollout", "rewards", "status_code", "stop_reason"}
"""Each result has some of these."""
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
    keys = store.keys(f"{args.exp_id}/" if args.exp_id else "")
    lines = _json_lines(store, keys) if args.json else filter(None, [results_table(store, keys)])
    listed = False
    for line in lines:
        listed = True
        print(line)
    if not listed:
        say(f"no results in {store.url}" + (f" for experiment {args.exp_id!r}" if args.exp_id else ""))
    return 0 if listed else 1


def results_table(store: Store, keys: Iterable[str]) -> str:
    """A table of the results under `keys`; empty if there are none."""
    rows = [_row(key, result) for key, result in _results(store, keys)]
    return format_table(["result", "status", "reward", "seconds", "stop reason"], rows) if rows else ""


def _json_lines(store: Store, keys: Iterable[str]) -> Iterator[str]:
    for _, result in _results(store, keys):
        if isinstance(result, Result):
            yield result.to_bytes().decode()
        else:
            say(f"left out: {result}")


def _results(store: Store, keys: Iterable[str]) -> Iterator[tuple[str, Result | Exception]]:
    """The results under `keys`, one at a time, or why one can't be read."""
    for key in filter(_is_result_key, keys):
        if (result := _read(store, key)) is not None:
            yield key, result


def _is_result_key(key: str) -> bool:
    """Whether a key has the form of a result's: folders hold other files too."""
    try:
        RolloutId.from_key(key)
    except KeyInvalid:
        return False
    return True


def _read(store: Store, key: str) -> Result | Exception | None:
    """The result, or why it can't be read; None for a file of another kind, such as a checkpoint's `config.json`."""
    try:
        result = read_result(store, key)
    except (ResultUnreadable, ValueError) as error:
        return error
    return result if result.document.keys() & _MARKS else None


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
