"""`eval --model`: the rollouts of a data set, with a checkpoint behind a gateway in this process."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

from ...client.evaluation import Outcome
from ...engine.checkpoints import resolve_model
from ...errors import ConfigError
from ..flags import sandboxed_agent, say
from ..terminal.progress import progress


def evaluate_model(
    args: argparse.Namespace, model: str, exp: str, rows: list[dict[str, Any]]
) -> tuple[list[Outcome], list[str | None]]:
    """The outcomes of the rows with one model, and the errors of the rollouts."""
    try:
        from ...client import RolloutClient
        from ...gateway.gateway import Gateway
        from ...rollout import UNALTERED, RolloutOptions, RolloutRunner
    except ImportError as error:
        hint = "pip install 'agentcore-rl-toolkit[local,transformers]'"
        raise ConfigError(f"--model runs a model in this process: {error}", hint=hint) from error
    options = RolloutOptions(
        n=args.samples,
        max_concurrent_sessions=args.concurrency,
        timeout=args.timeout,
        max_refills=args.retries * args.samples,
        max_failures=sys.maxsize,  # a model that always fails is a finding
        enforced={**UNALTERED, "temperature": args.temperature},
        keep_dropped=True,
    )
    say(f"{model}: loading {resolve_model(model)}")
    found = []
    with (
        Gateway(f"transformers={model}", tokenizer=model) as gateway,
        RolloutClient(sandboxed_agent(args), args.store, exp, tps_limit=args.tps_limit) as client,
        closing(RolloutRunner(client, gateway, options)) as runner,
        progress(args.quiet) as advance,
    ):
        for group in runner.run(rows):
            for rollout in group.rollouts:
                found.append(rollout)
                advance(not rollout.failed, len(found), len(rows) * args.samples)
        args.store = client.store_url
    outcomes = [Outcome(r.input_id, r.session_id or "", r.status, r.reward, r.seconds.get("session")) for r in found]
    return outcomes, [rollout.error for rollout in found]
