"""slime's evaluation: held-out rows, each as often as slime says, and how good they were.

Every rollout counts once, whatever it folds into, and one that failed counts with `failed_reward`: leaving it out would
flatter, and slime's pass@k needs the same number for each row. How many failed is among the figures.
"""

from __future__ import annotations

import copy
from typing import Any

from ...rollout import Group, Rollout
from ...types import Status
from .convert import to_nothing, to_rows
from .data import payload_of
from .plug import Plug, options_of
from .slime_types import dataset, eval_output


def evaluate(plug: Plug, args: Any, rollout_id: int) -> Any:
    """All data sets of slime's evaluation; gives its `RolloutFnEvalOutput`."""
    data: dict[str, dict[str, Any]] = {}
    metrics: dict[str, float] = {}
    with plug.writing("evaluations", rollout_id):
        for told in getattr(args, "eval_datasets", None) or []:
            data[told.name], metrics[f"eval/{told.name}/agentcore/failed"] = _evaluate(plug, args, told)
    return eval_output(data, metrics)


def _evaluate(plug: Plug, args: Any, told: Any) -> tuple[dict[str, Any], float]:
    metadata_key = told.metadata_key or args.metadata_key
    rows = dataset(told.path, prompt_key=told.input_key or args.input_key, metadata_key=metadata_key)
    n = told.n_samples_per_eval_prompt or 1
    payloads = [payload_of(row) | told.metadata_overrides for row in rows]
    options = options_of(
        args,
        **{name: getattr(told, name) for name in ("temperature", "top_p", "top_k", "stop", "stop_token_ids")},
        max_tokens=told.max_response_len,
    )
    options |= {"n": n, "oversample": 0, "max_batch_tokens": None, "context_limit": _limit(args)}
    groups = {group.index: group for group in plug.runner.run(payloads, **options)}
    outcome: dict[str, Any] = {"rewards": [], "truncated": [], "samples": []}
    failed = 0
    for index, row in enumerate(rows):
        for place in range(n):
            sample = copy.copy(row)
            sample.group_index, sample.index = index, index * n + place
            samples = _seen(plug, _at(groups.get(index), place), sample)
            failed += samples[0].metadata["agentcore"].get("failed", False)
            outcome["rewards"].append(samples[0].reward)
            outcome["truncated"].append(any(one.status is type(one).Status.TRUNCATED for one in samples))
            outcome["samples"] += samples
    return outcome, failed


def _at(group: Group | None, place: int) -> Rollout | None:
    rollouts = group.rollouts if group is not None else ()
    return rollouts[place] if place < len(rollouts) else None


def _seen(plug: Plug, rollout: Rollout | None, sample: Any) -> list[Any]:
    """The samples of a rollout, each with its reward; one without tokens if it failed, or has none."""
    if rollout is not None and rollout.status is Status.COMPLETED and rollout.reward is not None:
        if rollout.rows:
            return to_rows(rollout, sample, plug.decode)
        return [to_nothing(rollout, sample, plug.padding, rollout.reward)]
    nothing = to_nothing(rollout, sample, plug.padding, plug.settings.failed_reward)
    nothing.metadata["agentcore"]["failed"] = True
    return [nothing]


def _limit(args: Any) -> int | None:
    longest: int | None = getattr(args, "eval_max_context_len", None) or args.rollout_max_context_len
    return longest
