"""Groups of rollouts through slime: its samples, and its rewards as our hook makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentcore_rl_toolkit.backends.slime.convert import flatten, to_samples
from agentcore_rl_toolkit.backends.slime.rewards import ADVANTAGES, post_process
from agentcore_rl_toolkit.rollout import Group
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from support.backends import Seen
from support.slime import arguments, source_group

PASSES_ON: frozenset[str] = frozenset({"several rows", "logprobs", "routes", "versions"})


def seen(groups: Sequence[Group], n: int, credit: TurnCredit | None = None) -> list[Seen]:
    """What reaches slime's loss. Routing replay is on where there are routes: slime then takes nothing without."""
    routed = any(row.routes for group in groups for rollout in group.rollouts for row in rollout.rows)
    samples = flatten(
        to_samples(group, source_group(n, place), str, (1, 2) if routed else None, credit)
        for place, group in enumerate(groups)
    )
    args = arguments(rollout_batch_size=len(groups), n_samples_per_prompt=n, global_batch_size=len(groups) * n)
    args.custom_advantage_function_path = ADVANTAGES if credit else None
    _, advantages = post_process(args, samples)
    assert args.global_batch_size == len({sample.rollout_id for sample in samples})
    return [_seen(sample, advantage) for sample, advantage in zip(samples, advantages, strict=True)]


def _seen(sample: Any, advantage: Any) -> Seen:
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
    prompt = len(sample.tokens) - sample.response_length
    places = [i for i, bit in enumerate(sample.loss_mask) if bit]
    return Seen(
        ids=tuple(sample.tokens),
        trained=tuple(prompt + i for i in places),
        logprobs=tuple(sample.rollout_log_probs[i] for i in places),
        advantage=0.0 if isinstance(advantage, list) else advantage,
        advantages=tuple(advantage[i] for i in places) if isinstance(advantage, list) else (),
        routes=sample.rollout_routed_experts,
        versions=tuple(sample.weight_versions),
    )
