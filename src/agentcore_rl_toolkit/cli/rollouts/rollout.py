"""`agentcore-rl rollout AGENT --data rows.jsonl`: run a data set through an agent, one rollout per row and sample.

AGENT is an AgentCore ARN, a local runtime's ARN, or a Python file, which then runs on this machine; a folder means its
`rl_app.py`, and brings its `rows.jsonl`. Each row's fields are the payload. Outcomes go to stdout as JSON lines, as
they come; whole results are in the store.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...agent.result import Result
from ...config import AgentCoreConfig
from ...errors import ConfigError, RewardInvalid
from ...rows import read_rows, rows_of
from ..terminal.progress import progress
from ..terminal.sandbox_arguments import add_sandbox_arguments, sandboxed

if TYPE_CHECKING:
    from ...client import BatchItem

_LONGEST_KEY = 1024


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("rollout", help="run a data set through an agent", description=__doc__)
    add_batch_arguments(parser)
    parser.set_defaults(run=run)


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """What `rollout` and `eval` have in common."""
    parser.add_argument("agent", help="an ARN, or the path of an agent (rl_app.py, or its folder)")
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="JSONL, one payload a line; - for stdin (default: rows.jsonl in the agent's folder)",
    )
    parser.add_argument(
        "--store",
        default="runs",
        help="bucket (of a path: one on this machine), s3://bucket/prefix or folder (default: ./runs)",
    )
    parser.add_argument("--exp", metavar="ID", help="experiment (default: a new one)")
    parser.add_argument("--limit", type=int, help="only the first rows")
    parser.add_argument("-n", "--samples", type=int, default=1, help="samples per row (default: 1)")
    parser.add_argument("--concurrency", type=int, default=25, help="sessions at a time (default: 25)")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds per rollout (default: 900)")
    parser.add_argument("--retries", type=int, default=2, help="after failures of the infrastructure (default: 2)")
    parser.add_argument("--hedge-after", type=float, metavar="SECONDS", help="duplicate a rollout that takes longer")
    parser.add_argument("--resume", action="store_true", help="with --exp: keep what the store has, run the rest")
    parser.add_argument("--rerun-failures", action="store_true", help="with --resume: run failed ones again")
    parser.add_argument("--tps-limit", type=float, default=25, help="requests per second on AWS (default: 25)")
    parser.add_argument("--base-url", help="the policy's OpenAI-compatible endpoint (default: $BASE_URL)")
    parser.add_argument("--model-id", help="the policy's name there (default: $MODEL_ID)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="further _rollout fields")
    add_sandbox_arguments(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(args: argparse.Namespace) -> int:
    """Run the batch; exit with 1 if a line was bad or a rollout failed."""
    failed = run_batch(args, lambda item: print(json.dumps(outcome(item)), flush=True))
    return 1 if failed else 0


def run_batch(args: argparse.Namespace, each: Callable[[BatchItem], object]) -> int:
    """Run the data set, calling `each` with every item; gives how many lines and rollouts failed."""
    from ...client import RolloutClient

    if args.resume and not args.exp:
        raise ConfigError("--resume needs --exp", hint="name the experiment to go on with")
    args.data = args.data or rows_of(args.agent)
    rows, problems = read_rows(args.data, args.limit)
    for problem in problems:
        print(f"{args.data}: {problem}; the other lines are used", file=sys.stderr)
    args.exp = args.exp or time.strftime("exp-%Y%m%d-%H%M%S")
    settings = dict(_setting(text) for text in args.set)
    policy = AgentCoreConfig.load(base_url=args.base_url, model_id=args.model_id)
    store = "./runs" if args.store == "runs" else args.store
    failed = len(problems)
    with (
        RolloutClient(
            sandboxed(args),
            store,
            args.exp,
            tps_limit=args.tps_limit,
            max_pool_connections=max(50, args.concurrency),
            base_url=policy.base_url,
            model_id=policy.model_id,
            **settings,
        ) as client,
        progress(args.quiet) as advance,
    ):
        batch = client.run_batch(
            rows,
            max_concurrent_sessions=args.concurrency,
            timeout=args.timeout,
            n=args.samples,
            max_retries=args.retries,
            hedge_after=args.hedge_after,
            resume=args.resume,
            rerun_failures=args.rerun_failures,
            progress=advance,
        )
        for item in batch:
            failed += not item.success
            each(item)
    args.store = client.store_url
    print(f"experiment {args.exp}: {len(batch)} rollouts, results in {args.store}", file=sys.stderr)
    return failed


def outcome(item: BatchItem) -> dict[str, Any]:
    """An item without its whole result; what a result may hold is not to be trusted, and not always JSON."""
    result = Result(item.result or {})
    key = result.document.get("result_key")
    try:
        rewards = result.rewards
    except RewardInvalid:
        rewards = None
    return {
        "index": item.index,
        "sample": item.sample,
        "input_id": item.input_id,
        "status": item.status.value,
        "rewards": rewards,
        "elapsed": round(item.elapsed, 3),
        "attempts": item.attempts,
        "resumed": item.resumed,
        "result_key": key if isinstance(key, str) and len(key) <= _LONGEST_KEY else None,
        "error": item.error,
    }


def _setting(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"--set {text}: no value", hint="write NAME=JSON")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
