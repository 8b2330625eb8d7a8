"""Run a data set through an agent, one rollout for each row and sample.

AGENT is an AgentCore ARN, a local runtime's ARN, or the path of a Python file, which runs on this machine; a folder
means its `rl_app.py`, with its `rows.jsonl` as the data. A row's fields are the payload. Outcomes go to stdout as JSON
lines, as they come; whole results are in the store. Exits with 1 if a line was bad or a rollout failed.

The policy is at `--base-url`; or `--model` loads a checkpoint in this process, behind its own gateway.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...agent.result import Result
from ...common.env_file import read_env
from ...config import AgentCoreConfig
from ...errors import ConfigError, RewardInvalid
from ...rows import read_rows, rows_of
from ..flags import add_sandbox_flags, read_concurrency, read_pairs, say, session_targets
from ..terminal.parser import above_zero, count, count_or_zero, from_zero
from ..terminal.progress import progress
from .model_rollouts import refuse_other_policies, run_with_model

if TYPE_CHECKING:
    from ...client import BatchItem
    from ...runtime.local import AgentSource

HELP = "run a data set through an agent"
EXTRA = "local"
EXAMPLES = (
    "agentcore-rl rollout my_agent --model tiny --limit 4",
    "agentcore-rl rollout my_agent --data train.jsonl --model Qwen/Qwen3-4B --n 8 --rollouts runs/big > outcomes.jsonl",
    "agentcore-rl rollout rl_app.py --data rows.jsonl --base-url http://127.0.0.1:8000/v1 --model-id policy",
    "agentcore-rl rollout ARN --data rows.jsonl --store s3://bucket/prefix --exp-id base --n 8 > outcomes.jsonl",
)
STORE = "./runs/results"
"""Where results go unless told otherwise; training writes beside it."""
MODELS = "a folder, an adapter, the output folder of a run, a hub id, or `tiny`"
_LONGEST_KEY = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_batch_arguments(parser)
    parser.add_argument("--model", help=f"run the agent with this checkpoint: {MODELS}")
    help = "with --model: write conversations and tokens to this new folder, for show, ui and sft (default: nowhere)"
    parser.add_argument("--rollouts", metavar="FOLDER", help=help)


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `rollout` and `eval` share."""
    parser.add_argument("agent", help="an ARN, or the path of an agent (rl_app.py, or its folder)")
    help = (
        "run these rows: JSONL, CSV, Parquet, a JSON array, or a Hugging Face data set, on disk or of the Hub "
        "(OWNER/NAME, :SPLIT, :CONFIGURATION:SPLIT); - reads JSONL from stdin (default: rows.jsonl in the agent's "
        "folder, or rows in another format)"
    )
    parser.add_argument("--data", help=help)
    help = (
        f"put results here: a bucket (a local folder if AGENT is a path), s3://bucket/prefix or a folder "
        f"(default: {STORE})"
    )
    parser.add_argument("--store", default=STORE, help=help)
    parser.add_argument("--exp-id", help="name the experiment (default: a new name with the time)")
    parser.add_argument("--limit", type=count, help="run only this many rows (default: all)")
    parser.add_argument("-n", "--n", type=count, default=1, help="rollouts of each row (default: 1)")
    help = (
        "most sessions at a time; with --model or --gateway-url, auto: as many as keep the engines full (default: 25)"
    )
    parser.add_argument("--concurrency", type=read_concurrency, default=25, metavar="NUMBER", help=help)
    parser.add_argument("--timeout", type=above_zero, default=900.0, help="seconds for a rollout (default: 900)")
    help = "times to run a rollout again after a failure of the infrastructure (default: 2)"
    parser.add_argument("--retries", type=count_or_zero, default=2, help=help)
    help = "start a duplicate of a rollout that takes longer; the first to finish counts (default: never)"
    parser.add_argument("--hedge-after", type=above_zero, metavar="SECONDS", help=help)
    parser.add_argument("--resume", action="store_true", help="with --exp-id: run only what the store lacks")
    parser.add_argument("--rerun-failures", action="store_true", help="with --resume: run failed rollouts again")
    parser.add_argument(
        "--tps-limit", type=above_zero, default=25, help="most requests a second to each runtime on AWS (default: 25)"
    )
    parser.add_argument("--sqs-url", help="the SQS queue (name or URL) that announces results (default: none)")
    help = (
        "call the policy at this OpenAI-compatible address (default: $BASE_URL), with the key MODEL_API_KEY of this "
        "shell or .env"
    )
    parser.add_argument("--base-url", help=help)
    parser.add_argument("--model-id", help="ask for the policy by this name (default: $MODEL_ID)")
    help = (
        "use the gateway at this address, with AGENTCORE_RL_ADMIN_KEY: its own engine, or with --model this process's"
    )
    parser.add_argument("--gateway-url", help=help)
    help = "with --model: run the gateway in separate processes, as in workers=2 (default: in this process)"
    parser.add_argument("--gateway", action="append", default=[], help=help)
    help = "add a field to each payload's _rollout; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=help)
    help = "with --model: sample at this temperature (default: 1)"
    parser.add_argument("--temperature", type=from_zero, default=1.0, help=help)
    help = "with --model: most tokens of a call, prompt and reply (default: the model's)"
    parser.add_argument("--context-limit", type=count, help=help)
    help = "with --model: the invocation protocol, agentcore or sagemaker (default: agentcore)"
    parser.add_argument("--agent-protocol", default="agentcore", help=help)
    add_sandbox_flags(parser)
    help = "run sessions on this deployed copy of the agent (an ARN), which shares the load; may be repeated"
    parser.add_argument("--runtime", action="append", default=[], help=help)
    parser.add_argument("--quiet", action="store_true", help="show no progress on stderr")


def run(args: argparse.Namespace) -> int:
    bad: list[str | None] = []

    def show(item: BatchItem) -> None:
        outcome = describe(item)
        print(json.dumps(outcome), flush=True)
        if not item.success:
            bad.append(outcome["result_key"])

    failed = run_batch(args, show)
    say_where_to_look(args.store, bad)
    return 1 if failed else 0


def say_where_to_look(store: str, failed: list[str | None]) -> None:
    """Print the command that shows the first of the failed results, with its traceback."""
    if key := next(filter(None, failed), None):
        say(f"to see one of them: {shlex.join(['agentcore-rl', 'show', store, '--rollout', key])}")


def run_batch(
    args: argparse.Namespace, each: Callable[[BatchItem], object], on_store: Callable[[str], object] = str
) -> int:
    """Run the data set with the policy of the command line; returns how many lines and rollouts failed. `on_store` gets
    the store before the first rollout runs."""
    if not getattr(args, "model", None) and not args.gateway_url:
        if args.gateway:
            raise ConfigError("--gateway has no effect without --model", hint="--model CHECKPOINT")
        if args.agent_protocol != "agentcore":
            hint = "--model starts one: a folder, a hub id, or tiny; --gateway-url names one"
            raise ConfigError("--agent-protocol sagemaker needs a gateway to report to", hint=hint)
        if getattr(args, "rollouts", None):
            raise ConfigError("--rollouts needs --model: only a model behind this package's gateway has exact tokens")
        if args.concurrency == "auto":
            hint = "give a number, or a gateway with --gateway-url"
            raise ConfigError("--concurrency auto needs a gateway that tells the engines' load", hint=hint)
        return _run_with_url(args, each, on_store)
    refuse_other_policies(args)
    rows, failed = read_data(args)

    def count(item: BatchItem) -> None:
        nonlocal failed
        failed += not item.success
        each(item)

    run_with_model(args, getattr(args, "model", None) or None, args.exp_id, rows, count)
    return failed


def _run_with_url(
    args: argparse.Namespace, each: Callable[[BatchItem], object], on_store: Callable[[str], object]
) -> int:
    """Run the data set with the policy at `--base-url`."""
    from ...client import RolloutClient

    if args.resume and not args.exp_id:
        raise ConfigError("--resume needs --exp-id", hint="name the experiment to continue")
    rows, failed = read_data(args)
    succeeded = 0
    settings = read_pairs("--set", args.set)
    policy = AgentCoreConfig.load(base_url=args.base_url, model_id=args.model_id)
    targets = session_targets(args)
    given = _variables_of(targets)
    if policy.base_url is not None and (key := policy.model_api_key or given.get("MODEL_API_KEY")):
        settings.setdefault("model_api_key", key)
    with (
        RolloutClient(
            targets,
            args.store,
            args.exp_id,
            tps_limit=args.tps_limit,
            sqs_url=args.sqs_url,
            max_pool_connections=max(50, args.concurrency),
            base_url=policy.base_url,
            model_id=policy.model_id,
            **settings,
        ) as client,
        progress(args.quiet) as advance,
    ):
        on_store(client.store_url)
        batch = client.run_batch(
            rows,
            max_concurrent_sessions=args.concurrency,
            timeout=args.timeout,
            n=args.n,
            max_retries=args.retries,
            hedge_after=args.hedge_after,
            resume=args.resume,
            rerun_failures=args.rerun_failures,
            progress=lambda item, done, total: advance(item.success, total),
        )
        for item in batch:
            succeeded += item.success
            failed += not item.success
            each(item)
    args.store, args.used = client.store_url, client.usage
    if policy.base_url is None and not given.get("BASE_URL") and not succeeded:
        say("hint: no model was named, so the agent chose its own: --model tiny, or --base-url URL --model-id NAME")
    elif policy.base_url is not None and not succeeded:
        say("hint: a server at --base-url gets the model's name as the agent sends it; --model serves any name")
    say(f"experiment {args.exp_id}: {len(batch)} rollouts, results in {args.store}")
    return failed


def _variables_of(targets: str | AgentSource | list[str]) -> dict[str, str]:
    """The variables of `.env` and `--env`. Sessions on AWS don't get them."""
    return read_env(Path()) if isinstance(targets, (str, list)) else targets.env


def read_data(args: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """The rows of the data set, and how many lines were bad; sets the defaults of `--data` and `--exp-id`."""
    args.data = args.data or rows_of(args.agent)
    args.exp_id = args.exp_id or time.strftime("exp-%Y%m%d-%H%M%S")
    rows, problems = read_rows(args.data, args.limit)
    for problem in problems:
        say(f"{args.data}: {problem}; the other lines are used")
    return rows, len(problems)


def describe(item: BatchItem) -> dict[str, Any]:
    """An item without its whole result, as valid JSON whatever the agent put into the result."""
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
