"""Rollouts → slime's samples. Pure: slime's own types come in with the samples of its data source.

A rollout of several rows becomes several samples with one `rollout_id`: slime's loss averages over all their tokens
together, so that the rollout counts once. A rollout that is not trained on becomes no sample, where slime's rollout
function is ours; where it is slime's own and wants one for each slot, two padding tokens that are masked and removed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...gateway.record.trajectory import Row
from ...rollout import Group, Rollout
from ...types import Status
from .data import shown

Decode = Callable[[list[int]], str]
Replay = tuple[int, int]
"""Layers, and experts a token goes through in each: how routes are shaped for slime's routing replay."""

STATUSES = {
    Status.COMPLETED: "COMPLETED",
    Status.TRUNCATED: "TRUNCATED",
    Status.TIMEOUT: "FAILED",
    Status.AGENT_ERROR: "FAILED",
    Status.REWARD_ERROR: "FAILED",
    Status.SESSION_LOST: "ABORTED",
    Status.ENGINE_ERROR: "ABORTED",
    Status.CANCELLED: "ABORTED",
}
"""slime runs aborted samples again where it can; failed ones it keeps."""


def to_samples(group: Group, source: Sequence[Any], decode: Decode, replay: Replay | None = None) -> list[list[Any]]:
    """The samples of a group's trained rollouts, a list for each rollout; `source` are those of slime's data source."""
    if group.dropped is not None:
        return []
    rollouts = [rollout for rollout in group.trained if replay is None or has_routes(rollout, replay)]
    return [to_rows(rollout, sample, decode, replay) for rollout, sample in zip(rollouts, source, strict=False)]


def to_rows(rollout: Rollout, sample: Any, decode: Decode, replay: Replay | None = None) -> list[Any]:
    """A rollout's rows, as copies of the sample that asked for it."""
    rows = [_filled(rollout, row, sample, decode, replay) for row in rollout.rows]
    for place, made in enumerate(rows):
        made.metadata["agentcore"] |= {"row": place, "rows": len(rows)}
    return rows


def to_nothing(rollout: Rollout | None, sample: Any, padding: int, reward: float, replay: Replay | None = None) -> Any:
    """A sample that takes a place, enters no mean and no gradient; the reward is for those who look at all of them."""
    status = rollout.status if rollout is not None else Status.CANCELLED
    made = _about(rollout, sample)
    made.tokens, made.response, made.response_length = [padding, padding], "", 1
    made.loss_mask, made.rollout_log_probs = [0], [0.0]
    made.weight_versions = []
    made.reward, made.remove_sample = reward, True
    made.status = getattr(type(sample).Status, STATUSES[status])
    if made.status is type(sample).Status.COMPLETED:  # masked for another reason, which the metadata has
        made.status = type(sample).Status.FAILED
    if replay is not None:  # slime refuses none, and all zeros; the token is masked
        layers, experts = replay
        made.rollout_routed_experts = [[list(range(experts))] * layers]
    return made


def has_routes(rollout: Rollout, replay: Replay) -> bool:
    """Whether every token of every row, but the last, has its expert routes."""
    return all(
        row.routes is not None
        and row.routes.data.shape[1] == replay[0] * replay[1]
        and bool(row.routes.known[:-1].all())
        for row in rollout.rows
    )


def _filled(rollout: Rollout, row: Row, sample: Any, decode: Decode, replay: Replay | None) -> Any:
    cut = row.prompt_length
    ids, mask = row.token_ids.tolist(), row.loss_mask[cut:].tolist()
    made = _about(rollout, sample)
    made.tokens, made.response, made.response_length = ids, decode(ids[cut:]), len(ids) - cut
    made.loss_mask = mask
    made.rollout_log_probs = [x if bit else 0.0 for x, bit in zip(row.logprobs[cut:].tolist(), mask, strict=True)]
    made.reward, made.remove_sample = rollout.reward, False
    made.weight_versions = [version for version, _, _ in row.versions]
    made.status = getattr(type(sample).Status, STATUSES[rollout.status])
    if rollout.status is Status.COMPLETED and row.spans and row.spans[-1].finish == "length":
        made.status = type(sample).Status.TRUNCATED
    if replay is not None and row.routes is not None:
        made.rollout_routed_experts = row.routes.data[:-1].reshape(-1, *replay)
    return made


def _about(rollout: Rollout | None, sample: Any) -> Any:
    """A copy of the sample with what is known of the rollout as a whole."""
    made = copy.copy(sample)
    made.rollout_id = sample.rollout_id if sample.rollout_id is not None else sample.index
    known: dict[str, Any] = {}
    if rollout is not None:
        made.session_id = rollout.session_id
        known = {"input_id": rollout.input_id, "session_id": rollout.session_id, "status": rollout.status.value}
        known |= {"rewards": rollout.rewards, "why": rollout.why}
    made.metadata = shown(sample.metadata) | {"agentcore": known}
    return made


def flat(samples: Iterable[Any]) -> list[Any]:
    """Samples without the lists they are in."""
    found: list[Any] = []
    for sample in samples:
        found.extend(flat(sample) if isinstance(sample, list) else [sample])
    return found
