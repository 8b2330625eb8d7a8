"""Score rollouts again with another reward, without running the agent again.

ROLLOUTS is a file of rollouts (.jsonl or .parquet) or a folder of them. The reward function takes what it needs by the
names of its parameters: see `rollout/signal/rescore.py`. Rollouts go to --output, figures to stdout.
"""

from __future__ import annotations

import argparse
import json
import statistics
from contextlib import closing, nullcontext
from pathlib import Path

from ...common.text_table import format_table
from ...errors import ConfigError

HELP = "score rollouts with another reward"
EXTRA = "gateway"
EXAMPLES = (
    "agentcore-rl rescore runs/train/rollouts --reward reward.py:LengthPenalty",
    "agentcore-rl rescore runs/train/rollouts/step-000000.jsonl --reward reward.py:score --output rescored.jsonl",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rollouts", help="a file of rollouts, or a folder of them")
    parser.add_argument("--reward", required=True, metavar="FILE:NAME", help="a function or a RewardFunction class")
    parser.add_argument("--output", help="write the rollouts here: .jsonl or .parquet (default: nowhere)")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--status", action="append", help="score only rollouts that ended so; may be repeated")


def run(args: argparse.Namespace) -> int:
    from ...rollout import RolloutWriter, read_rollouts
    from ...rollout.signal.rescore import load_reward, rescore

    score, files = load_reward(args.reward), _files(Path(args.rollouts))
    if args.output and Path(args.output).exists():
        raise ConfigError(f"{args.output} exists already", hint="remove it, or choose another --output")
    before: list[float] = []
    after: list[float] = []
    with closing(RolloutWriter(args.output)) if args.output else nullcontext() as writer:
        for rollout in (rollout for file in files for rollout in read_rollouts(file)):
            if args.status and rollout.status.value not in args.status:
                continue
            rescored = rescore(rollout, score)
            before += [rollout.reward] if rollout.reward is not None else []
            after += [rescored.reward] if rescored.reward is not None else []
            if writer is not None:
                writer.write(rescored)
    figures = {"before": _figures(before), "after": _figures(after)}
    rows = [[name, str(count), "-" if mean is None else f"{mean:.4g}"] for name, (count, mean) in figures.items()]
    table = format_table(["", "rollouts with a reward", "mean reward"], rows)
    named = {name: {"rollouts": count, "mean_reward": mean} for name, (count, mean) in figures.items()}
    print(json.dumps(named) if args.json else table)
    return 0


def _figures(rewards: list[float]) -> tuple[int, float | None]:
    return len(rewards), statistics.fmean(rewards) if rewards else None


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) + sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise ConfigError(f"{path} has no rollouts", hint="name a .jsonl or .parquet file, or a folder of them")
    return files
