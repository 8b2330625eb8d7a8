"""Data for the office agent, as JSONL on stdout: the built-in tasks, or OfficeBench's own.

python prepare.py builtin train 256 > train.jsonl
python prepare.py officebench OfficeBench/tasks > officebench.jsonl
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from office.convert import convert_task, find_tasks, needs_eyes
from office.payload import OfficeRequest
from office.tasks import tasks

from agentcore_rl_toolkit.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    builtin = kinds.add_parser("builtin", help="made-up office work, from a seed")
    builtin.add_argument("split", choices=("train", "held-out"))
    builtin.add_argument("count", type=int)
    builtin.add_argument("--seed", type=int, default=0)
    original = kinds.add_parser("officebench", help="the tasks of OfficeBench")
    original.add_argument("folder", type=Path, help="the folder `tasks` of its repository")
    original.add_argument(
        "--images", action="store_true", help="also tasks with pictures, which need a tool to read them"
    )
    args = parser.parse_args(argv)
    try:
        return write_builtin(args) if args.kind == "builtin" else write_officebench(args)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def write_builtin(args: argparse.Namespace) -> int:
    for task in islice(tasks(args.split, args.seed), args.count):
        print(json.dumps(task.row))
    return 0


def write_officebench(args: argparse.Namespace) -> int:
    left_out = 0
    for path in find_tasks(args.folder):
        try:
            row = convert_task(path)
            OfficeRequest.read(row)
        except ConfigError as error:
            print(f"{error}; the other tasks are used", file=sys.stderr)
            continue
        if needs_eyes(row) and not args.images:
            left_out += 1
        else:
            print(json.dumps(row))
    if left_out:
        print(f"left out {left_out} tasks with pictures", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
