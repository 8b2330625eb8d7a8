"""`agentcore-rl eval AGENT [--data rows.jsonl]`: run a data set and say how good the agent is, and how sure that is.

Prints mean reward with its confidence interval, pass@k, latency and failures. `--compare EXP` tells it apart from an
earlier experiment in the same store; `--output` writes the outcomes as .json, .csv or .parquet.

`--model` runs a checkpoint in this process and evaluates the agent with it: a folder, an adapter's folder, the output
folder of a run, a hub id, or `tiny`. Given several times, as in `--model tiny --model runs/train`, each one is
compared with the first, row by row.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...agent.result import Result, read_result
from ...client.evaluation import Outcome, compare, summarize
from ...errors import ConfigError, KeyInvalid, ResultUnreadable
from ...rows import rows_of
from ...store import open_store
from ...types import RolloutId, Status
from ..terminal.table import format_table
from .eval_models import run_model, say_errors
from .rollout import add_batch_arguments, outcome, run_batch

if TYPE_CHECKING:
    from ...client import BatchItem

_KINDS = (".json", ".csv", ".parquet")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("eval", help="run a data set and summarize it", description=__doc__)
    add_batch_arguments(parser)
    parser.add_argument("-k", type=int, action="append", help="report pass@k; may be repeated (default: 1)")
    parser.add_argument("--threshold", type=float, default=1.0, help="reward from which a rollout passes (default: 1)")
    parser.add_argument("--compare", metavar="EXP", help="an earlier experiment in the same store")
    parser.add_argument("--output", metavar="FILE", help="write the outcomes: .json, .csv or .parquet")
    parser.add_argument("--model", action="append", metavar="MODEL", help="a checkpoint to evaluate; may be repeated")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="with --model: the sampling temperature (default: 1)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run, summarize, compare; exit with 1 if nothing could be evaluated."""
    if args.output and Path(args.output).suffix not in _KINDS:
        raise ConfigError(f"--output {args.output}: unknown kind", hint=f"end it in {', '.join(_KINDS)}")
    if args.model:
        return _run_models(args)
    items: list[BatchItem] = []
    run_batch(args, items.append)
    say_errors(item.error for item in items)
    outcomes = [_outcome(item) for item in items]
    summary = summarize(outcomes, ks=tuple(args.k or (1,)), threshold=args.threshold)
    print(format_table([f"experiment {args.exp}", "figure"], summary.rows()))
    report: dict[str, Any] = {"exp_id": args.exp, "summary": summary.to_dict()}
    if args.compare:
        comparison = compare(_stored(args.store, args.compare), outcomes)
        print("\n" + format_table([f"against {args.compare}", "figure"], comparison.rows()))
        print(comparison.verdict)
        report["comparison"] = comparison.to_dict() | {"against": args.compare}
    if args.output:
        _write(Path(args.output), report, [outcome(item) for item in items])
    return 0 if any(item.status is Status.COMPLETED for item in items) else 1


def _run_models(args: argparse.Namespace) -> int:
    """Evaluate checkpoints, the second and later ones against the first."""
    for name in ("base_url", "model_id", "resume", "rerun_failures", "hedge_after", "compare", "set"):
        if getattr(args, name):
            raise ConfigError(f"--{name.replace('_', '-')} can't be given with --model")
    args.data = args.data or rows_of(args.agent)
    args.exp = args.exp or time.strftime("exp-%Y%m%d-%H%M%S")
    ks, reports = tuple(args.k or (1,)), []
    evaluated: list[list[Outcome]] = []
    for number, model in enumerate(args.model):
        exp = args.exp if len(args.model) == 1 else f"{args.exp}-{number}"
        evaluated.append(run_model(args, model, exp))
        summary = summarize(evaluated[-1], ks=ks, threshold=args.threshold)
        print(format_table([f"{model} (experiment {exp})", "figure"], summary.rows()))
        report: dict[str, Any] = {"model": model, "exp_id": exp, "summary": summary.to_dict()}
        if number:
            comparison = compare(evaluated[0], evaluated[-1])
            print(f"\na is {args.model[0]}, b is {model}: {comparison.verdict}")
            report["comparison"] = comparison.to_dict() | {"against": args.model[0]}
        print()
        reports.append(report)
    if args.output:
        rows = [
            {"model": model, **dataclasses.asdict(outcome), "status": outcome.status.value, "rewards": outcome.reward}
            for model, outcomes in zip(args.model, evaluated, strict=True)
            for outcome in outcomes
        ]
        _write(Path(args.output), {"models": reports}, rows)
    completed = [any(one.status is Status.COMPLETED for one in outcomes) for outcomes in evaluated]
    return 0 if all(completed) else 1


def _outcome(item: BatchItem) -> Outcome:
    """An item as one of the data set's: whose it is, it doesn't get to say."""
    if item.result is None:
        return Outcome(item.input_id, item.session_id or "", item.status, None, item.elapsed)
    return replace(Outcome.from_result(Result(item.result)), input_id=item.input_id, session_id=item.session_id or "")


def _stored(store_name: str, exp_id: str) -> list[Outcome]:
    """The outcomes of an earlier experiment; sessions that were lost are not the agent's."""
    store, outcomes = open_store(store_name), []
    for key in store.keys(f"{exp_id}/"):
        try:
            id, outcome = RolloutId.from_key(key), Outcome.from_result(read_result(store, key))
        except ResultUnreadable as error:
            print(f"left out: {error}", file=sys.stderr)
        except KeyInvalid:  # no result
            continue
        else:
            outcomes.append(replace(outcome, input_id=id.input_id, session_id=id.session_id))
    store.close()
    if not outcomes:
        raise ConfigError(f"there is no experiment {exp_id!r} in {store.url}")
    return [outcome for outcome in outcomes if outcome.status is not Status.SESSION_LOST]


def _write(path: Path, report: dict[str, Any], outcomes: list[dict[str, Any]]) -> None:
    if path.suffix == ".json":
        path.write_text(json.dumps(report | {"outcomes": outcomes}, indent=2) + "\n")
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(outcomes[0]))
            writer.writeheader()
            writer.writerows(outcomes)
    else:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise ConfigError(
                "writing Parquet needs pyarrow", hint="pip install 'agentcore-rl-toolkit[cli]', or write .csv"
            ) from None
        rows = [row | {"rewards": _last(row["rewards"])} for row in outcomes]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    print(f"written to {path}", file=sys.stderr)


def _last(rewards: Any) -> Any:
    return rewards[-1] if isinstance(rewards, list) else rewards
