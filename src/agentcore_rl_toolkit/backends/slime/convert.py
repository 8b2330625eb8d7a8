"""slime's samples → payloads, and rollouts → slime's samples, which are copies of those of its data source.

A rollout of several rows becomes several samples with one `rollout_id`. slime's loss averages over all their tokens
together, so the rollout counts once. Our rollout function returns samples only for rollouts that are trained on.
slime's own loop needs a sample for each slot, so the others become placeholders there: two padding tokens, masked and
removed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...gateway.record.trajectory import Row
from ...rollout import Group, Rollout
from ...rollout.rollout import split_row
from ...rollout.signal.credit import TurnCredit
from ...types import Status

Decode = Callable[[list[int]], str]
Replay = tuple[int, int]
"""The shape of expert routes in slime's routing replay: layers, and experts per token in each."""

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
"""slime may run aborted samples again; it keeps failed ones."""
_READ_BY_SLIME = ("raw_reward", "round_number")
"""Keys of a sample's metadata that slime would take for its own figures."""


def payload_of(sample: Any) -> dict[str, Any]:
    """The payload of a sample: its metadata, or its prompt if it has no metadata."""
    payload = dict(sample.metadata or {})
    payload.pop("agentcore", None)  # slime may hand a finished sample back
    return payload or {"prompt": sample.prompt}


def to_samples(
    group: Group,
    source: Sequence[Any],
    decode: Decode,
    replay: Replay | None = None,
    credit: TurnCredit | None = None,
) -> list[list[Any]]:
    """The samples of a group's trained rollouts, a list for each; `source` are the samples of slime's data source.

    With `credit` the metadata of each has its response's advantages.
    """
    if group.dropped is not None:
        return []
    rollouts = [rollout for rollout in group.trained if replay is None or has_routes(rollout, replay)]
    made = [to_rows(rollout, sample, decode, replay) for rollout, sample in zip(rollouts, source, strict=False)]
    if credit is not None:
        credited = credit.completion_advantages(group)
        for rollout, samples in zip(rollouts, made, strict=False):
            for sample, values in zip(samples, credited[id(rollout)], strict=True):
                sample.metadata["agentcore"]["advantages"] = values.tolist()
    return made


def to_rows(rollout: Rollout, sample: Any, decode: Decode, replay: Replay | None = None) -> list[Any]:
    """A rollout's rows, as copies of the sample that it was run for."""
    rows = [_fill_sample(rollout, row, sample, decode, replay) for row in rollout.rows]
    for place, made in enumerate(rows):
        made.metadata["agentcore"] |= {"row": place, "rows": len(rows)}
    return rows


def to_placeholder(
    rollout: Rollout | None, sample: Any, padding: int, reward: float, replay: Replay | None = None
) -> Any:
    """A sample that fills a slot and enters no mean and no gradient; slime's own filters still see its reward."""
    status = rollout.status if rollout is not None else Status.CANCELLED
    made = _copy_sample(rollout, sample)
    made.tokens, made.response, made.response_length = [padding, padding], "", 1
    made.loss_mask, made.rollout_log_probs = [0], [0.0]
    made.weight_versions = []
    made.reward, made.remove_sample = reward, True
    made.status = getattr(type(sample).Status, STATUSES[status])
    if made.status is type(sample).Status.COMPLETED:  # masked for another reason, which is in the metadata
        made.status = type(sample).Status.FAILED
    if replay is not None:  # slime refuses None and all zeros; the token is masked anyway
        layers, experts = replay
        made.rollout_routed_experts = [[list(range(experts))] * layers]
    return made


def has_routes(rollout: Rollout, replay: Replay) -> bool:
    """Whether every token of every row, except the last, has its expert routes."""
    return all(
        row.routes is not None
        and row.routes.data.shape[1] == replay[0] * replay[1]
        and bool(row.routes.known[:-1].all())
        for row in rollout.rows
    )


def _fill_sample(rollout: Rollout, row: Row, sample: Any, decode: Decode, replay: Replay | None) -> Any:
    prompt, completion, logprobs, mask = split_row(row)
    made = _copy_sample(rollout, sample)
    made.tokens, made.response, made.response_length = prompt + completion, decode(completion), len(completion)
    made.loss_mask, made.rollout_log_probs = mask, logprobs
    made.reward, made.remove_sample = rollout.reward, False
    made.weight_versions = [version for version, _, _ in row.versions]
    made.status = getattr(type(sample).Status, STATUSES[rollout.status])
    if rollout.status is Status.COMPLETED and row.spans and row.spans[-1].finish == "length":
        made.status = type(sample).Status.TRUNCATED
    if replay is not None and row.routes is not None:
        made.rollout_routed_experts = row.routes.data[:-1].reshape(-1, *replay)
    return made


def _copy_sample(rollout: Rollout | None, sample: Any) -> Any:
    """A copy of the sample with the facts of the rollout as a whole."""
    made = copy.copy(sample)
    made.rollout_id = sample.rollout_id if sample.rollout_id is not None else sample.index
    known: dict[str, Any] = {}
    if rollout is not None:
        made.session_id = rollout.session_id
        known = {"input_id": rollout.input_id, "session_id": rollout.session_id, "status": rollout.status.value}
        known |= {"rewards": rollout.rewards, "why": rollout.why}
    metadata = {name: value for name, value in (sample.metadata or {}).items() if name not in _READ_BY_SLIME}
    made.metadata = metadata | {"agentcore": known}
    return made


def flatten(samples: Iterable[Any]) -> list[Any]:
    """Samples without the nested lists they are in."""
    found: list[Any] = []
    for sample in samples:
        found.extend(flatten(sample) if isinstance(sample, list) else [sample])
    return found
