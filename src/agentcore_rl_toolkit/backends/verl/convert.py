"""Groups of rollouts → verl's agent loop outputs, as the fields of `AgentLoopOutput`. Pure; needs no verl.

Which rollouts become outputs decides the group's statistics. verl keeps outputs under `{uid}_{session}_{index}`, and
its GRPO takes the mean over sessions, the last output of each, and gives its advantage to all of them: so a rollout
of several rows is a session of several outputs, and one that is not trained on is not there. A group with fewer than
two of them must not be there at all: verl would take a lone reward itself for the advantage.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gateway.record.trajectory import RouteTable, Row
from ...rollout import Group, Rollout
from ...types import INFRASTRUCTURE, Status

Fields = dict[str, Any]
Shape = tuple[int, int]
"""Layers, and experts of each token in a layer."""


def trained(group: Group, routes: Shape | None = None) -> list[Rollout]:
    """What verl is to train on. With `routes`, expert routes are replayed, so rollouts without them are left out."""
    found = [] if group.dropped is not None else group.trained
    if routes is not None:
        found = [rollout for rollout in found if all(_routed(row) for row in rollout.rows)]
    return found if len(found) >= min(2, len(group.rollouts)) else []


def measured(group: Group) -> list[Rollout]:
    """What counts in a validation: all but what the infrastructure did; the agent's failures do."""
    return [rollout for rollout in group.rollouts if rollout.status not in INFRASTRUCTURE]


def outputs(rollout: Rollout, *, routes: Shape | None = None) -> list[Fields]:
    """One output for each row; the reward is that of the rollout."""
    return [_output(rollout, row, routes) for row in rollout.rows]


def validated(rollout: Rollout, failed_reward: float, padding: int) -> list[Fields]:
    """A rollout of a validation; one that failed has `failed_reward`, and one that never sampled a masked token."""
    reward = rollout.reward if rollout.status is Status.COMPLETED else failed_reward
    made = outputs(rollout) or [_nothing(rollout, padding)]
    return [fields | {"reward_score": failed_reward if reward is None else reward} for fields in made]


def _output(rollout: Rollout, row: Row, routes: Shape | None) -> Fields:
    cut = row.prompt_length
    ids = row.token_ids.tolist()
    mask = [int(bit) for bit in row.loss_mask[cut:]]
    fields = _common(rollout) | {
        "prompt_ids": ids[:cut],
        "response_ids": ids[cut:],
        "response_mask": mask,
        "response_logprobs": [float(v) if bit else 0.0 for v, bit in zip(row.logprobs[cut:], mask, strict=True)],
    }
    fields["extra_fields"] |= _steps(row)
    if routes is not None and row.routes is not None:
        fields["routed_experts"] = row.routes.data.reshape(-1, *routes).astype(np.int16)
    return fields


def _nothing(rollout: Rollout, padding: int) -> Fields:
    return _common(rollout) | {
        "prompt_ids": [padding],
        "response_ids": [padding],
        "response_mask": [0],
        "response_logprobs": [0.0],
    }


def _common(rollout: Rollout) -> Fields:
    model = rollout.seconds.get("model", 0.0)
    rewards = rollout.rewards
    return {
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


def _steps(row: Row) -> dict[str, int]:
    """verl's weight versions are the numbers of its steps."""
    steps = [int(version) for version, _, _ in row.versions]
    return {"min_global_steps": min(steps), "max_global_steps": max(steps)} if steps else {}


def _routed(row: Row) -> bool:
    """Whether the experts of every token but the last are known: the last one never went through the model."""
    table: RouteTable | None = row.routes
    return table is not None and bool(table.known[:-1].all())
