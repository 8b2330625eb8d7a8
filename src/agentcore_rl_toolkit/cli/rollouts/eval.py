"""Run a data set and report how well the agent does, and how certain that is.

Prints mean reward with its confidence interval, pass@k, latency and failures. Rollouts that the agent failed count as
`--failed-reward`; those that the infrastructure or the reward failed are left out. `--compare EXP` compares with an
earlier experiment in the same store; `--output` writes the outcomes as .json, .csv or .parquet.

`--model` loads a checkpoint in this process and evaluates the agent with it: a folder, an adapter's folder, the output
folder of a run, a hub id, or `tiny`. Several, as in `--model tiny --model runs/train`, share one table, and each is
compared with the first, row by row. Exits with 1 if nothing could be evaluated.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...agent.result import Result, stored_results
from ...client.evaluation import Outcome, Summary, compare, general_message, summarize
from ...common.text_table import format_table
from ...engine.checkpoints import resolve_model
from ...errors import ConfigError
from ...store import open_store
from ...types import Status
from ..flags import say
from ..terminal.parser import count
from . import rollout
from .model_rollouts import refuse_other_policies, run_with_model

if TYPE_CHECKING:
    from ...client import BatchItem

HELP = "run a data set and summarize it"
EXTRA = "local"
EXAMPLES = (
    "agentcore-rl eval my_agent --model tiny --n 4",
    "agentcore-rl eval my_agent --data held_out.jsonl --model tiny --model runs/train --output report.json",
    "agentcore-rl eval ARN --data held_out.jsonl --store s3://bucket/prefix --exp-id tuned --compare base",
)
_KINDS = (".json", ".csv", ".parquet")
_SHOWN_ERRORS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rollout.add_batch_arguments(parser)
    parser.add_argument("-k", type=count, action="append", help="report pass@k; may be repeated (default: 1)")
    help = "the least reward that counts as a pass (default: 1)"
    parser.add_argument("--threshold", type=float, default=1.0, help=help)
    help = "count a rollout that the agent failed (truncated, timeout, agent_error) with this reward (default: 0)"
    parser.add_argument("--failed-reward", type=float, default=0.0, help=help)
    parser.add_argument("--compare", metavar="EXP", help="compare with this experiment in the same store")
    parser.add_argument("--output", help="write the outcomes: .json, .csv or .parquet")
    help = f"evaluate this checkpoint, several against the first; {rollout.MODELS}"
    parser.add_argument("--model", action="append", help=help)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object instead of tables")


def run(args: argparse.Namespace) -> int:
    if args.output:
        _prepare_output(Path(args.output))
    return _evaluate_models(args) if args.model else _evaluate(args)


def _prepare_output(path: Path) -> None:
    """Refuse a file that can't be written, before rollouts run for minutes."""
    if path.suffix not in _KINDS:
        raise ConfigError(f"--output {path}: unknown file type", hint=f"end it in {', '.join(_KINDS)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        hint = "pip install 'agentcore-rl-toolkit[cli]', or write .csv"
        raise ConfigError("writing Parquet needs pyarrow", hint=hint)
    if path.is_dir():
        raise ConfigError(f"--output {path} can't be written: it is a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {path} can't be written: {error.strerror}") from None
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--output {path} can't be written: Permission denied")


def _evaluate(args: argparse.Namespace) -> int:
    """Evaluate the agent with the policy at `--base-url`."""
    items: list[BatchItem] = []
    earlier: list[Outcome] = []

    def look_up(store: str) -> None:
        if args.compare:
            earlier.extend(stored_outcomes(store, args.compare))

    rollout.run_batch(args, items.append, look_up)
    report, summary, outcomes = _report(args, args.exp_id, items)
    tables = [format_table([f"experiment {args.exp_id}", "figure"], summary.rows())]
    if args.compare:
        comparison = compare(earlier, outcomes, failed_reward=args.failed_reward)
        tables.append("\n" + format_table([f"against {args.compare}", "figure"], comparison.rows()))
        tables.append(comparison.verdict)
        report["comparison"] = comparison.to_dict() | {"against": args.compare}
    _finish(args, report, tables, [rollout.describe(item) for item in items])
    return 0 if any(item.status is Status.COMPLETED for item in items) else 1


def _evaluate_models(args: argparse.Namespace) -> int:
    """Evaluate checkpoints, the second and later ones against the first."""
    refuse_other_policies(args)
    for model in args.model:
        resolve_model(model)  # before the first one runs for minutes
    rows, _ = rollout.read_data(args)
    reports, columns, verdicts, lines = [], [], [], []
    first: list[Outcome] = []
    for number, model in enumerate(args.model):
        exp_id = args.exp_id if len(args.model) == 1 else f"{args.exp_id}-{number}"
        items: list[BatchItem] = []
        run_with_model(args, model, exp_id, rows, items.append)
        report, summary, outcomes = _report(args, exp_id, items)
        column = dict(summary.rows())
        if number:
            comparison = compare(first, outcomes, failed_reward=args.failed_reward)
            report["comparison"] = comparison.to_dict() | {"against": args.model[0]}
            column |= dict(comparison.rows())
            verdicts.append(f"a is {args.model[0]}, b is {model}: {comparison.verdict}")
        first = first or outcomes
        reports.append({"model": model, **report})
        columns.append(column)
        lines += [{"model": model} | rollout.describe(item) for item in items]
    labels = list(dict.fromkeys(label for column in columns for label in column))
    table = format_table(["", *args.model], [[label, *(one.get(label, "") for one in columns)] for label in labels])
    _finish(args, {"models": reports}, [table, *verdicts], lines)
    return 0 if all(report["summary"]["completed"] for report in reports) else 1


def _report(
    args: argparse.Namespace, exp_id: str, items: list[BatchItem]
) -> tuple[dict[str, Any], Summary, list[Outcome]]:
    """The report of one model's rollouts; the commonest errors go to stderr."""
    _say_errors(item.error for item in items)
    rollout.say_where_to_look(args.store, [rollout.describe(item)["result_key"] for item in items if not item.success])
    outcomes = [item_outcome(item) for item in items]
    summary = summarize(outcomes, ks=tuple(args.k or (1,)), threshold=args.threshold, failed_reward=args.failed_reward)
    return {"exp_id": exp_id, "summary": summary.to_dict(), "used": args.used.to_dict()}, summary, outcomes


def _finish(args: argparse.Namespace, report: dict[str, Any], tables: list[str], lines: list[dict[str, Any]]) -> None:
    """Print the report, and write it if asked to."""
    print(json.dumps(report) if args.json else "\n".join(tables))
    if args.output:
        _write(Path(args.output), report, lines)


def item_outcome(item: BatchItem) -> Outcome:
    """The outcome of an item. Its row and session come from the client, not from the result."""
    if item.result is None:
        return Outcome(item.input_id, item.session_id or "", item.status, None, item.elapsed)
    return replace(Outcome.from_result(Result(item.result)), input_id=item.input_id, session_id=item.session_id or "")


def stored_outcomes(store_name: str, exp_id: str) -> list[Outcome]:
    """The outcomes of an earlier experiment, without lost sessions, for which the agent is not to blame."""
    store, outcomes = open_store(store_name), []
    for id, result in stored_results(store, f"{exp_id}/"):
        if isinstance(result, Exception):
            say(f"left out: {result}")
        else:
            outcomes.append(replace(Outcome.from_result(result), input_id=id.input_id, session_id=id.session_id))
    store.close()
    if not outcomes:
        raise ConfigError(f"{store.url} has no experiment {exp_id!r}")
    return [outcome for outcome in outcomes if outcome.status is not Status.SESSION_LOST]


def _say_errors(errors: Iterable[str | None]) -> None:
    """Print the most common errors, each once, with its count; those that differ in numbers and ids are one."""
    found = list(filter(None, errors))
    examples = {general_message(error): error for error in reversed(found)}
    common = Counter(map(general_message, found)).most_common(_SHOWN_ERRORS)
    for kind, times in common:
        say(f"{times} failed: {examples[kind]}")
    if others := len(found) - sum(times for _, times in common):
        say(f"{others} failed for other reasons; `agentcore-rl results STORE` lists them")


def _write(path: Path, report: dict[str, Any], outcomes: list[dict[str, Any]]) -> None:
    if path.suffix == ".json":
        path.write_text(json.dumps(report | {"outcomes": outcomes}, indent=2) + "\n")
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(outcomes[0]))
            writer.writeheader()
            writer.writerows(outcomes)
    else:
        import pyarrow
        import pyarrow.parquet

        every = [(row, row["rewards"]) for row in outcomes]
        rows = [row | {"rewards": rewards[-1] if isinstance(rewards, list) else rewards} for row, rewards in every]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    say(f"written to {path}")
