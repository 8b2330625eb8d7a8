"""Groups of rollouts through verl's types and its advantages, as its trainer computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from agentcore_rl_toolkit.backends.verl.convert import to_outputs, trained_rollouts, turn_advantages
from agentcore_rl_toolkit.backends.verl.manager import CreditedOutput
from agentcore_rl_toolkit.backends.verl.overrides import TURN_CREDIT
from agentcore_rl_toolkit.rollout import Group
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from support.backends import Seen

PASSES_ON: frozenset[str] = frozenset({"several rows", "logprobs", "routes", "versions", "step rewards"})

_SHAPE = (1, 2)  # layers and experts of the suite's routes


def seen(groups: Sequence[Group], n: int, credit: TurnCredit | None = None) -> list[Seen]:
    """What reaches verl's loss."""
    keys, made = [], []
    for group in groups:
        chosen = trained_rollouts(group)
        for session, (rollout, given) in enumerate(
            zip(chosen, turn_advantages(group, chosen, credit) if chosen else [], strict=True)
        ):
            for index, fields in enumerate(to_outputs(rollout, routes=_SHAPE, advantages=given)):
                keys.append(f"uid{group.index}_{session}_{index}")
                made.append(CreditedOutput(**fields).as_dict())
    advantages = _advantages(keys, made, TURN_CREDIT["algorithm.adv_estimator"] if credit else "grpo")
    return [_seen(row, advantage, credit) for row, advantage in zip(made, advantages, strict=True)]


def _advantages(keys: list[str], made: list[dict[str, Any]], estimator: str) -> list[list[float]]:
    padded = {
        name: pad_sequence([row[name] for row in made], batch_first=True) for name in ("response_mask", "rm_scores")
    }
    batch = TensorDict(
        {"response_mask": padded["response_mask"], "token_level_rewards": padded["rm_scores"]}, batch_size=len(keys)
    )
    uids = np.array([key.split("_")[0] for key in keys], dtype=object)
    data = compute_advantage_for_multi_trajectories(
        DataProto(batch=batch, non_tensor_batch={"uid": uids}), batch_keys=keys, adv_estimator=estimator
    )
    rows: list[list[float]] = data.batch["advantages"].tolist()
    return rows


def _seen(row: dict[str, Any], advantages: list[float], credit: TurnCredit | None) -> Seen:
    prompt = len(row["prompts"])
    places = torch.nonzero(row["response_mask"]).flatten().tolist()
    by_token = tuple(round(advantages[place], 6) for place in places)
    (advantage,) = {0.0} if credit else set(by_token)
    assert all(value == 0 for place, value in enumerate(advantages) if place not in places)
    extra = row["extra_fields"]
    steps = [extra[f"{end}_global_steps"] for end in ("min", "max")]
    return Seen(
        ids=(*row["prompts"].tolist(), *row["responses"].tolist()),
        trained=tuple(prompt + place for place in places),
        logprobs=tuple(row["rollout_log_probs"][place].item() for place in places),
        advantage=advantage,
        advantages=by_token if credit else (),
        routes=row["routed_experts"].tolist() if "routed_experts" in row else None,
        versions=tuple(str(step) for step in steps if step is not None),
    )
