"""slime's `--rollout-function-path`: the rollouts of one step, or of an evaluation.

    slime's data source → payloads → sessions → gateway → slime's router
    groups → samples with their rollout's id → slime's trainer

Groups that are dropped are made up for by further rows; rollouts that failed are left out, and the step is as much
smaller (`rewards.fit_batch`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import RolloutsStopped
from ...rollout import Group, step_metrics
from .convert import to_samples
from .data import payload_of
from .evaluate import evaluate
from .plug import Plug, options_of, plug_for
from .rewards import restore_batch
from .router import router_url, settle
from .slime_types import train_output

_TRIES = 3
"""A step looks at most at so many times its rows."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """slime's hook; gives its `RolloutFnTrainOutput`, or `RolloutFnEvalOutput` when it evaluates."""
    plug = plug_for(args)
    try:
        if evaluation:
            return evaluate(plug, args, rollout_id)
        restore_batch(args)
        return _step(plug, args, rollout_id, _Supply(data_source, args.rollout_batch_size))
    finally:
        settle(router_url(args))


class _Supply:
    """Rows of slime's data source, one group at a time, as they are needed."""

    def __init__(self, data_source: Any, rows: int) -> None:
        self._data_source, self._rows = data_source, rows
        self.taken: list[list[Any]] = []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(_TRIES * self._rows):
            for samples in self._data_source.get_samples(1):
                for place, sample in enumerate(samples, sum(map(len, self.taken))):
                    sample.index = place if sample.index is None else sample.index
                self.taken.append(samples)
                yield payload_of(samples[0])


def _step(plug: Plug, args: Any, rollout_id: int, supply: _Supply) -> Any:
    options = options_of(args) | {"n": args.n_samples_per_prompt}
    with plug.writing("rollouts", rollout_id):
        groups = list(plug.runner.run(supply, groups=args.rollout_batch_size, **options))
    groups.sort(key=lambda group: group.index)
    samples = [to_samples(group, supply.taken[group.index], plug.decode, plug.replay) for group in groups]
    samples = [group for group in samples if group]
    if not samples:
        raise RolloutsStopped(f"rollout step {rollout_id} has nothing to train on: {_reasons(groups)}")
    metrics = {f"agentcore/{name}": value for name, value in step_metrics(groups).items()}
    return train_output(samples, metrics | {"agentcore/samples": sum(len(r) for group in samples for r in group)})


def _reasons(groups: list[Group]) -> str:
    """Why no group is trained on."""
    known = {group.dropped or "no expert routes" for group in groups}
    return ", ".join(sorted(known)) or "no rows"
