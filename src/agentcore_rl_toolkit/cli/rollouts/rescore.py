"""`agentcore-rl rescore ROLLOUTS --reward file.py:name`: score rollouts again without running the agent again.

ROLLOUTS is a file of rollouts (.jsonl or .parquet) or a folder of them. The reward function is called with what it asks
for by name: see `rollout/rescore.py`. Rollouts go to --output, figures to stdout.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..terminal.table import format_table

if TYPE_CHECKING:
    from ...rollout import Rollout


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("rescore", help="score rollouts with another reward", description=__doc__)
    parser.add_argument("rollouts", help="a file of rollouts, or a folder of them")
    parser.add_argument("--reward", required=True, metavar="FILE:NAME", help="a function or a RewardFunction class")
    parser.add_argument("--output", metavar="FILE", help="where to write them: .jsonl or .parquet")
    parser.add_argument("--status", action="append", help="only rollouts that ended so; may be repeated")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score, write, compare."""
    from ...rollout import RolloutWriter
    from ...rollout.rescore import load_reward, rescore

    score = load_reward(args.reward)
    files = _files(Path(args.rollouts))
    if args.output and Path(args.output).exists():
        raise ConfigError(f"{args.output} exists already", hint="remove it, or choose another --output")
    before: list[float] = []
    after: list[float] = []
    writer = RolloutWriter(args.output) if args.output else None
    try:
        for rollout in _read(files):
            if args.status and rollout.status.value not in args.status:
                continue
            again = rescore(rollout, score)
            before += [rollout.reward] if rollout.reward is not None else []
            after += [again.reward] if again.reward is not None else []
            if writer is not None:
                writer.write(again)
    finally:
        if writer is not None:
            writer.close()
    rows = [_row("before", before), _row("after", after)]
    print(format_table(["", "rollouts with a reward", "mean reward"], rows))
    return 0


def _row(name: str, rewards: list[float]) -> list[str]:
    return [name, str(len(rewards)), f"{statistics.fmean(rewards):.4g}" if rewards else "-"]


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) + sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise ConfigError(f"{path} has no rollouts", hint="name a .jsonl or .parquet file, or a folder of them")
    return files


def _read(files: list[Path]) -> Iterator[Rollout]:
    from ...rollout import read_rollouts

    for file in files:
        yield from read_rollouts(file)
