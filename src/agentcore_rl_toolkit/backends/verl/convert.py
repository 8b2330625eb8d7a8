"""Groups of rollouts → verl's agent loop outputs, as the fields of `AgentLoopOutput`. Pure; needs no verl.

The choice of rollouts decides the group's statistics. verl keeps outputs under `{uid}_{session}_{index}`. Its GRPO
takes the mean over sessions, by the last output of each, and gives a session's advantage to all its outputs. So a
rollout of several rows is a session of several outputs. A rollout that is not trained on gets no outputs. Nor does a
group with fewer than two rollouts, because verl would use a lone reward as the advantage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...gateway.record.trajectory import Row
from ...rollout import Group, Rollout
from ...rollout.rollout import split_row
from ...rollout.signal.credit import TurnCredit
from ...types import UNMEASURED, Status

Fields = dict[str, Any]
Shape = tuple[int, int]
"""Layers, and experts per token in each."""


def trained_rollouts(group: Group, routes: Shape | None = None) -> list[Rollout]:
    """The rollouts that verl trains on; if it replays routes (of this shape), only those that have them."""
    found = [] if group.dropped is not None else group.trained
    if routes is not None:
        found = [rollout for rollout in found if all(_has_routes(row) for row in rollout.rows)]
    return found if len(found) >= min(2, len(group.rollouts)) else []


def turn_advantages(
    group: Group, chosen: Sequence[Rollout], credit: TurnCredit | None
) -> list[list[list[float]] | None]:
    """With turn credit: for each chosen rollout its rows' advantages, one per token after the prompt; else None."""
    if credit is None:
        return [None] * len(chosen)
    known = credit.completion_advantages(group)
    return [[values.tolist() for values in known[id(rollout)]] for rollout in chosen]


def measured_rollouts(group: Group) -> list[Rollout]:
    """The rollouts that count in a validation: all except failures that say nothing of the policy."""
    return [rollout for rollout in group.rollouts if rollout.status not in UNMEASURED]


def to_outputs(
    rollout: Rollout, *, routes: Shape | None = None, advantages: Sequence[list[float]] | None = None
) -> list[Fields]:
    """One output per row, each with the rollout's reward, and with its tokens' advantages if they are given."""
    made = [_output(rollout, row, routes) for row in rollout.rows]
    for fields, values in zip(made, advantages or (), strict=False):
        fields["advantages"] = values
    return made


def to_validation_outputs(rollout: Rollout, failed_reward: float, padding: int) -> list[Fields]:
    """The outputs of a validation: `failed_reward` if the rollout failed, a masked placeholder if it has no tokens."""
    reward = rollout.reward if rollout.status is Status.COMPLETED else failed_reward
    made = to_outputs(rollout) or [_fields(rollout, [padding], [padding], [0.0], [0])]
    return [fields | {"reward_score": failed_reward if reward is None else reward} for fields in made]


def fit_mini_batch(rows: int, updates: int, n: int, ranks: int) -> int:
    """verl's `ppo_mini_batch_size`, in data rows of `n` rollouts, that divides `rows` training rows into `updates`.

    Every rank gets the same number of rows. With n=8, 64 rollouts of 70 rows, 64 rows and 50 rows make one update:

    >>> [fit_mini_batch(rows, 1, n=8, ranks=1) for rows in (70, 64, 50)]
    [9, 8, 7]
    """
    whole = ranks // math.gcd(n, ranks)
    return math.ceil(rows / (updates * n * whole)) * whole


def _output(rollout: Rollout, row: Row, routes: Shape | None) -> Fields:
    fields = _fields(rollout, *split_row(row))
    steps = [int(version) for version, _, _ in row.versions]  # verl's weight versions are the numbers of its steps
    if steps:
        fields["extra_fields"] |= {"min_global_steps": min(steps), "max_global_steps": max(steps)}
    if routes is not None and row.routes is not None:
        fields["routed_experts"] = row.routes.data.reshape(-1, *routes).astype(np.int16)
    return fields


def _fields(
    rollout: Rollout, prompt: list[int], completion: list[int], logprobs: list[float], mask: list[int]
) -> Fields:
    model = rollout.seconds.get("model", 0.0)
    rewards = rollout.rewards
    return {
        "prompt_ids": prompt,
        "response_ids": completion,
        "response_mask": mask,
        "response_logprobs": logprobs,
        "reward_score": rollout.reward,
        "num_turns": rollout.fidelity.turns,
        "metrics": {
            "generate_sequences": model,
            "tool_calls": max(0.0, rollout.seconds.get("session", 0.0) - model),
        },
        "extra_fields": {
            "turn_scores": list(rewards) if isinstance(rewards, list) else [],
            "reward_extra_info": {},
            "min_global_steps": None,
            "max_global_steps": None,
            "input_id": rollout.input_id,
            "rollout_id": rollout.session_id,
            "status": rollout.status.value,
        },
    }


def _has_routes(row: Row) -> bool:
    """Whether every token except the last has its routes; the last token never went through the model."""
    return row.routes is not None and bool(row.routes.known[:-1].all())
