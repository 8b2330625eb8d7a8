"""`--model` and `--gateway-url` of `rollout` and `eval`: the rollouts of a data set behind a gateway.

`--model` loads a checkpoint in this process. The gateway is in this process too, in separate processes (`--gateway
workers=2`), or elsewhere (`--gateway-url`); the last one may sample from its own engine instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...client.batch import BatchItem
from ...engine.checkpoints import context_warning, resolve_model
from ...errors import ConfigError
from ..flags import read_pairs, say, session_targets
from ..terminal.progress import progress

if TYPE_CHECKING:
    from ...gateway.gateway import Gateway
    from ...gateway.remote.gateway_client import GatewayClient
    from ...rollout import Group, Rollout

_NOT_WITH_MODEL = ("base_url", "resume", "rerun_failures", "hedge_after", "compare", "set")


def refuse_other_policies(args: argparse.Namespace) -> None:
    """Refuse flags that name another policy, or that only the client's batches have."""
    chosen = "--model" if getattr(args, "model", None) else "--gateway-url"
    for name in _NOT_WITH_MODEL + (("model_id",) if chosen == "--model" else ()):
        if getattr(args, name, None):
            raise ConfigError(f"--{name.replace('_', '-')} can't be combined with {chosen}")


def run_with_model(
    args: argparse.Namespace,
    model: str | None,
    exp_id: str,
    rows: list[dict[str, Any]],
    each: Callable[[BatchItem], object],
) -> None:
    """Run the rows with one model, calling `each` with every rollout that counts."""
    try:
        from ...client import RolloutClient
        from ...rollout import UNALTERED, Action, RolloutOptions, RolloutRunner
    except ImportError as error:
        hint = "pip install 'agentcore-rl-toolkit[local,transformers]'"
        raise ConfigError(f"--model runs a model in this process: {error}", hint=hint) from error
    options = RolloutOptions(
        n=args.n,
        max_concurrent_sessions=args.concurrency,
        timeout=args.timeout,
        max_refills=args.retries * args.n,
        max_failures=sys.maxsize,  # a model that always fails is a finding
        enforced={**UNALTERED, "temperature": args.temperature},
        context_limit=args.context_limit,
        model=args.model_id,
        keep_dropped=True,
    )
    if model is not None:
        say(f"{model}: loading {resolve_model(model)}")
        if warning := context_warning(args.context_limit, model):
            say(warning)
    with (
        _kept_rollouts(args, model) as keep,
        _open_gateway(args, model) as gateway,
        RolloutClient(
            session_targets(args),
            args.store,
            exp_id,
            tps_limit=args.tps_limit,
            sqs_url=args.sqs_url,
            agent_protocol=args.agent_protocol,
        ) as client,
        progress(args.quiet) as advance,
    ):

        def show(rollout: Rollout) -> None:
            keep(rollout)
            if rollout.action is not Action.REFILL:
                advance(not rollout.failed, len(rows) * args.n, rollout.fidelity.sampled)

        with closing(RolloutRunner(client, gateway, options, on_rollout=show)) as runner:
            for group in runner.run(rows):
                lost = _lost(group, args.n)
                for rollout in lost:
                    advance(False, len(rows) * args.n, rollout.fidelity.sampled)
                for rollout in (*group.rollouts, *lost):
                    each(_item(rollout, group.index))
        args.store, args.used = client.store_url, client.usage
    say(f"experiment {exp_id}: {len(rows) * args.n} rollouts, results in {args.store}")


@contextmanager
def _kept_rollouts(args: argparse.Namespace, model: str | None) -> Iterator[Callable[[Rollout], object]]:
    """Writes rollouts to the run folder that `--rollouts` names, if it names one."""
    folder = getattr(args, "rollouts", None)
    if folder is None:
        yield lambda rollout: None
        return
    from ...rollout.run_folder import RunWriter
    from ...rollout.run_folder.run_writer import write_anew

    if Path(folder).exists() and any(Path(folder).iterdir()):
        raise ConfigError(f"--rollouts {folder}: the folder is not empty", hint="remove it, or choose another")
    with RunWriter(folder) as run, run.part("rollout", 0) as part:
        known = {name: getattr(args, name) for name in ("agent", "data", "n", "temperature")}
        run.describe(kind="rollout", model=model, started=time.time(), **known)
        yield part.write
    write_anew(Path(folder) / "summary.json", json.dumps({"used": args.used.to_dict()}) + "\n")  # it has ended


def _open_gateway(args: argparse.Namespace, model: str | None) -> Gateway | GatewayClient:
    """The gateway that the flags describe; with a model, it samples from this process."""
    from ...backends.settings import RolloutSettings
    from ...engine import open_engine
    from ...gateway.remote.gateway_client import GatewayClient
    from ...gateway.render.tokenizer import load_tokenizer

    if model is None:
        return GatewayClient(args.gateway_url)
    given = read_pairs("--gateway", args.gateway)
    where = RolloutSettings(gateway=given, gateway_url=args.gateway_url, output=args.store, exp_id=args.exp_id)
    tokenizer = load_tokenizer(model)
    return where.open_gateway(open_engine(f"transformers={model}", tokenizer=tokenizer.full), tokenizer)


def _lost(group: Group, n: int) -> tuple[Rollout, ...]:
    """The last tries of samples whose session or engine failed every time: they have no place in the group."""
    missing = n - len(group.rollouts)
    return group.others[-missing:] if missing > 0 else ()


def _item(rollout: Rollout, index: int) -> BatchItem:
    return BatchItem(
        success=not rollout.failed,
        result=rollout.result,
        error=rollout.error,
        index=index,
        elapsed=rollout.seconds.get("session", 0.0),
        input_id=rollout.input_id,
        sample=rollout.sample,
        session_id=rollout.session_id,
        status=rollout.status,
    )
