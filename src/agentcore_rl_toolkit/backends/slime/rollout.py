"""slime's `--rollout-function-path`: the rollouts of one step, or of an evaluation.

    slime's data source → payloads → sessions → gateway → slime's router
    groups → samples with their rollout's id → slime's trainer

In a step, further rows replace dropped groups. Failed rollouts are left out, and the step is smaller by their number
(`rewards.fit_batch`). In an evaluation every rollout counts once, and the agent's own failures with `failed_reward`:
leaving them out would inflate the mean. Those that the infrastructure lost or that have no reward are left out.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Iterator
from typing import Any

from ...errors import RolloutsStopped
from ...rollout import Group, Rollout, step_metrics
from ...studio.guards import StepFacts
from ...studio.guards.guards import report, stop_run
from ...types import Status
from ..loop.held_out import held_out_outcome
from .convert import payload_of, to_placeholder, to_rows, to_samples
from .hook_resources import HookResources, open_resources, rollout_options
from .rewards import restore_batch
from .router import abort_requests, router_url

logger = logging.getLogger(__name__)

_MOST_ROWS = 3
"""A step draws at most this many times its rows."""
_INSTALL = (
    "clone https://github.com/THUDM/slime and put its folder on PYTHONPATH, or run in its image; on our side: "
    "pip install 'agentcore-rl-toolkit[slime]'"
)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's hook; returns its `RolloutFnTrainOutput`, or its `RolloutFnEvalOutput` for an evaluation."""
    resources = open_resources(args)
    try:
        if evaluation:
            return _evaluate(resources, args, rollout_id)
        restore_batch(args)
        return _run_step(resources, args, rollout_id, _RowSupply(data_source, args.rollout_batch_size))
    finally:
        abort_requests(router_url(args))


# --- a step ----------------------------------------------------------------------------------------------------------


class _RowSupply:
    """Payloads from slime's data source, drawn one group at a time."""

    def __init__(self, data_source: Any, rows: int) -> None:
        self._data_source, self._rows = data_source, rows
        self.drawn: list[list[Any]] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(_MOST_ROWS * self._rows):
            for samples in self._data_source.get_samples(1):
                for place, sample in enumerate(samples, sum(map(len, self.drawn))):
                    sample.index = place if sample.index is None else sample.index
                self.drawn.append(samples)
                yield payload_of(samples[0])


def _run_step(resources: HookResources, args: Any, rollout_id: int, supply: _RowSupply) -> Any:
    resources.begin_step(args, rollout_id)
    seed = f"{args.rollout_seed}/train/{rollout_id}"
    options = rollout_options(args) | {"n": args.n_samples_per_prompt, "seed": seed}
    with resources.writing("train", rollout_id) as part:
        groups = list(resources.runner.run(supply, groups=args.rollout_batch_size, **options))
        for group in groups:
            part.add_group(group)
        resources.causes.add(groups)
    groups.sort(key=lambda group: group.index)
    credit = resources.settings.turn_credit
    samples = [
        to_samples(group, supply.drawn[group.index], resources.decode, resources.replay, credit) for group in groups
    ]
    samples = [group for group in samples if group]
    if not samples:
        reasons = ", ".join(sorted({group.dropped or "no expert routes" for group in groups})) or "no rows"
        raise RolloutsStopped(f"rollout step {rollout_id} has nothing to train on: {reasons}")
    figures = step_metrics(groups)
    guards = resources.guards_from(rollout_id)
    found = guards.judge(StepFacts(rollout_id + 1, figures, guards.observe(groups, part.key)))
    figures |= {f"guard/{one.guard}": 1.0 for one in found}
    resources.keep_figures(rollout_id + 1, figures)
    report(found, resources.settings.folder, logger.warning)
    stop_run(found, resources.settings.folder)
    metrics = {f"agentcore/{name}": value for name, value in figures.items()}
    metrics["agentcore/samples"] = sum(len(rollout) for group in samples for rollout in group)
    return slime_module("rollout.base_types").RolloutFnTrainOutput(samples=samples, metrics=metrics)


# --- an evaluation ---------------------------------------------------------------------------------------------------


def _evaluate(resources: HookResources, args: Any, rollout_id: int) -> Any:
    data: dict[str, dict[str, Any]] = {}
    metrics: dict[str, float] = {}
    with resources.writing("at_step" if rollout_id else "before", rollout_id):
        for dataset in getattr(args, "eval_datasets", None) or []:
            outcome, counts = _evaluate_dataset(resources, args, dataset, rollout_id)
            metrics |= {f"eval/{dataset.name}/agentcore/{name}": count for name, count in counts.items()}
            if outcome["rewards"]:  # slime divides by their number
                data[dataset.name] = outcome
    return slime_module("rollout.base_types").RolloutFnEvalOutput(data=data, metrics=metrics)


def _evaluate_dataset(
    resources: HookResources, args: Any, dataset: Any, step: int
) -> tuple[dict[str, Any], dict[str, int]]:
    """What slime makes its figures of; and how many rollouts failed, and are left out of them."""
    keys = {
        "prompt_key": dataset.input_key or args.input_key,
        "metadata_key": dataset.metadata_key or args.metadata_key,
    }
    rows = slime_module("utils.data").Dataset(dataset.path, None, None, None, **keys).samples
    n = dataset.n_samples_per_eval_prompt or 1
    seed = f"{args.rollout_seed}/{dataset.name}/{step}"
    groups = _run_rows(resources, args, dataset, rows, {"n": n, "seed": seed})
    outcome: dict[str, Any] = {"rewards": [], "truncated": [], "samples": []}
    failed = 0
    for index, row in enumerate(rows):
        rollouts = groups[index].rollouts if index in groups else ()
        failed += n - sum(rollout.status is Status.COMPLETED for rollout in rollouts)
        measured = [
            (place, rollout, reward)
            for place, rollout in enumerate(rollouts)
            if (reward := held_out_outcome(rollout, resources.settings.failed_reward).reward) is not None
        ]
        if len(measured) < n and getattr(args, "log_passrate", False):
            continue  # slime's pass@k needs the same number of rollouts for each row
        for place, rollout, reward in measured:
            sample = copy.copy(row)
            sample.group_index, sample.index = index, index * n + place
            samples = _eval_samples(resources, rollout, sample, reward)
            outcome["rewards"].append(reward)
            outcome["truncated"].append(any(one.status is type(one).Status.TRUNCATED for one in samples))
            outcome["samples"] += samples
    return outcome, {"failed": failed, "left_out": n * len(rows) - len(outcome["rewards"])}


def _run_rows(
    resources: HookResources, args: Any, dataset: Any, rows: list[Any], changes: dict[str, Any]
) -> dict[int, Group]:
    options = rollout_options(
        args,
        **{name: getattr(dataset, name) for name in ("temperature", "top_p", "top_k", "stop", "stop_token_ids")},
        max_tokens=dataset.max_response_len,
    )
    limit = getattr(args, "eval_max_context_len", None) or args.rollout_max_context_len
    options |= changes | {"evaluation": True, "oversample": 0, "max_batch_tokens": None, "context_limit": limit}
    payloads = [payload_of(row) | dataset.metadata_overrides for row in rows]
    return {group.index: group for group in resources.runner.run(payloads, **options)}


def _eval_samples(resources: HookResources, rollout: Rollout, sample: Any, reward: float) -> list[Any]:
    """The samples of a rollout, each with its reward; a placeholder if the rollout failed or has no tokens."""
    if rollout.status is Status.COMPLETED and rollout.rows:
        return to_rows(rollout, sample, resources.decode)
    placeholder = to_placeholder(rollout, sample, resources.padding, reward)
    placeholder.metadata["agentcore"]["failed"] = rollout.status is not Status.COMPLETED
    return [placeholder]


def slime_module(name: str) -> Any:
    """One of slime's modules. Nothing else here imports slime."""
    try:
        return importlib.import_module(f"slime.{name}")
    except ImportError as error:
        raise ImportError(f"slime can't be imported: {error}\nhint: {_INSTALL}", name=error.name) from error
