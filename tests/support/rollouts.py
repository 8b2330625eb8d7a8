"""Rollouts and groups made by hand, as the gateway and the agent would have made them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.record.trajectory import Fidelity, RouteTable, Row, TurnSpan
from agentcore_rl_toolkit.rollout import Action, Group, Rollout
from agentcore_rl_toolkit.types import Status


def make_row(
    prompt: Sequence[int] = (1, 2, 3),
    completion: Sequence[int] = (4, 5),
    mask: Sequence[int] | None = None,
    logprobs: Sequence[float] | None = None,
    *,
    weight: float = 1.0,
    versions: tuple[tuple[str, int, int], ...] = (),
    routes: RouteTable | None = None,
    turns: Sequence[tuple[int, int, int]] | None = None,
) -> Row:
    """A row whose trained tokens are those of `mask`; by default all of the completion, at -0.5 each.

    `turns` are numbers of turns with the start and end of each in the completion; by default, one turn.
    """
    mask = [1] * len(completion) if mask is None else mask
    logprobs = [-0.5 if bit else np.nan for bit in mask] if logprobs is None else logprobs
    return Row(
        token_ids=array(IDS, [*prompt, *completion]),
        loss_mask=np.array([0] * len(prompt) + list(mask), np.uint8),
        logprobs=np.array([np.nan] * len(prompt) + list(logprobs), np.float32),
        weight=weight,
        prompt_length=len(prompt),
        spans=tuple(
            TurnSpan(turn, len(prompt) + start, len(prompt) + end, True, "stop")
            for turn, start, end in ([(0, 0, len(completion))] if turns is None else turns)
        ),
        versions=versions,
        routes=routes,
    )


def weighted(*rows: Row) -> tuple[Row, ...]:
    """Rows of one rollout: their weights are their shares of what is trained."""
    total = sum(row.trained for row in rows)
    return tuple(replace(row, weight=row.trained / total) for row in rows)


def make_fidelity(rows: Sequence[Row], **changes: Any) -> Fidelity:
    trained = sum(row.trained for row in rows)
    known = Fidelity(trained, trained, {}, len(rows), len(rows), 0, 0, 0)
    return replace(known, **changes)


def make_rollout(
    reward: float | list[float] | None = 1.0,
    *rows: Row,
    sample: int = 0,
    status: Status = Status.COMPLETED,
    action: Action = Action.TRAIN,
    why: str | None = None,
    fidelity: Fidelity | None = None,
    **fields: Any,
) -> Rollout:
    """A rollout of one plain row, unless others are given."""
    rows = rows or (make_row(),)
    known: dict[str, Any] = {
        "input_id": "row-1",
        "session_id": f"session-{sample}",
        "payload": {"prompt": "hi", "answer": "4"},
        "result": {"status_code": 200, "rewards": reward, "response": "four"},
        "error": None,
    }
    return Rollout(
        **known | fields,
        sample=sample,
        status=status,
        action=action,
        why=why,
        rewards=reward,
        rows=rows,
        fidelity=fidelity or make_fidelity(rows),
    )


def failed(status: Status = Status.AGENT_ERROR, action: Action = Action.MASK, **fields: Any) -> Rollout:
    """One that failed, and is not trained on."""
    made = make_rollout(None, status=status, action=action, why=status.value, result=None, error="it broke")
    return replace(made, **fields)


def make_group(*rollouts: Rollout, index: int = 0, **fields: Any) -> Group:
    return Group(index, f"row-{index}", {"prompt": "hi"}, rollouts, **fields)
