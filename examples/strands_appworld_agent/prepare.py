"""Data for the agent, as JSONL on stdout: tasks of the built-in world, or AppWorld's own.

python prepare.py builtin train 256 > train.jsonl
python prepare.py appworld train > train.jsonl
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import islice

from worlds.appworld import ask_worker, start_worker
from worlds.tasks import tasks

from agentcore_rl_toolkit.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    builtin = kinds.add_parser("builtin", help="tasks of the built-in world")
    builtin.add_argument("split", choices=("train", "held-out"))
    builtin.add_argument("count", type=int)
    builtin.add_argument("--seed", type=int, default=0)
    original = kinds.add_parser("appworld", help="tasks of AppWorld; needs it installed, with its data")
    original.add_argument("dataset", help="train, dev, test_normal or test_challenge")
    original.add_argument("--limit", type=int, help="only the first tasks")
    args = parser.parse_args(argv)
    try:
        return write_builtin(args) if args.kind == "builtin" else write_appworld(args)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def write_builtin(args: argparse.Namespace) -> int:
    for task in islice(tasks(args.split, args.seed), args.count):
        print(json.dumps(task.row))
    return 0


def write_appworld(args: argparse.Namespace) -> int:
    worker = start_worker()
    try:
        found = ask_worker(worker, {"do": "list", "dataset": args.dataset, "limit": args.limit}, 600)["tasks"]
    finally:
        worker.close()
    for task_id, instruction in found:
        print(json.dumps({"prompt": instruction, "task_id": task_id, "world": "appworld"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
