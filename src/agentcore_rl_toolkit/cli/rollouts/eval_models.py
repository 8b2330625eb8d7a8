"""`eval --model`: a gateway with a checkpoint behind it, and a data set's rollouts through it."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ...client.evaluation import Outcome
from ...engine.checkpoints import resolve_model
from ...errors import ConfigError
from ...rows import read_rows
from ..terminal.progress import progress
from ..terminal.sandbox_arguments import sandboxed

if TYPE_CHECKING:
    from ...rollout import Rollout

_SHOWN = 3


def run_model(args: argparse.Namespace, model: str, exp: str) -> list[Outcome]:
    """The outcomes of a data set with one model."""
    try:
        from ...client import RolloutClient
        from ...gateway.gateway import Gateway
        from ...rollout import UNALTERED, RolloutOptions, RolloutRunner
    except ImportError as error:
        hint = "pip install 'agentcore-rl-toolkit[local,transformers]'"
        raise ConfigError(f"--model runs a model in this process: {error}", hint=hint) from error
    rows, problems = read_rows(args.data, args.limit)
    for problem in problems:
        print(f"{args.data}: {problem}; the other lines are used", file=sys.stderr)
    options = RolloutOptions(
        n=args.samples,
        max_concurrent_sessions=args.concurrency,
        timeout=args.timeout,
        max_refills=args.retries * args.samples,
        max_failures=sys.maxsize,  # a model that fails always is a finding
        enforced={**UNALTERED, "temperature": args.temperature},
        keep_dropped=True,
    )
    print(f"{model}: loading {resolve_model(model)}", file=sys.stderr)
    with (
        Gateway(f"transformers={model}", tokenizer=model) as gateway,
        RolloutClient(sandboxed(args), args.store, exp, tps_limit=args.tps_limit) as client,
        closing(RolloutRunner(client, gateway, options)) as runner,
        progress(args.quiet) as advance,
    ):
        found = list(_told(runner, rows, advance, len(rows) * args.samples))
        args.store = client.store_url
    say_errors(rollout.error for rollout in found)
    return [Outcome(r.input_id, r.session_id or "", r.status, r.reward, r.seconds.get("session")) for r in found]


def say_errors(errors: Iterable[str | None]) -> None:
    """Print the commonest errors of an evaluation, each once, with how often it came."""
    counts = Counter(error for error in errors if error)
    for error, count in counts.most_common(_SHOWN):
        print(f"{count} failed: {error}", file=sys.stderr)
    if len(counts) > _SHOWN:
        print(f"{len(counts) - _SHOWN} other errors; `agentcore-rl results` shows them", file=sys.stderr)


class _Told:
    """What progress needs to know of a rollout."""

    def __init__(self, rollout: Rollout) -> None:
        self.success = not rollout.failed


def _told(runner: Any, rows: list[dict[str, Any]], advance: Any, total: int) -> Iterator[Rollout]:
    done = 0
    for group in runner.run(rows):
        for rollout in group.rollouts:
            done += 1
            advance(_Told(rollout), done, total)
            yield rollout
