"""slime's `--custom-reward-post-process-path`: rewards → advantages, and how many rollouts an update takes.

slime by itself normalizes by position, which is wrong as soon as a rollout has several rows or a group is short. Here a
group is what slime calls one (`group_index`), and every rollout in it (`rollout_id`) counts once.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

_CENTRED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_SCALED = ("grpo", "gspo", "cispo")
_TINY = 1e-6  # slime's own
_CONFIGURED = "agentcore_global_batch_size"


def post_process(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """slime's hook: rewards as they are, and what each sample is trained with: the same for all rows of a rollout."""
    raw = [sample.get_reward_value(args) for sample in samples]
    fit_batch(args, len({_rollout(sample) for sample in samples}))
    if args.advantage_estimator not in _CENTRED or not args.rewards_normalization:
        return raw, [0.0 if sample.remove_sample else reward for sample, reward in zip(samples, raw, strict=True)]
    groups: dict[Any, dict[Any, float]] = {}
    for sample, reward in zip(samples, raw, strict=True):
        if not sample.remove_sample:
            groups.setdefault(sample.group_index, {})[_rollout(sample)] = reward
    scaled = args.advantage_estimator in _SCALED and args.grpo_std_normalization
    advantages = {group: _normalized(rewards, scaled=scaled) for group, rewards in groups.items()}
    return raw, [
        0.0 if sample.remove_sample else advantages[sample.group_index][_rollout(sample)] for sample in samples
    ]


def fit_batch(args: Any, rollouts: int) -> None:
    """Let slime take all `rollouts` of this step, in as many updates as were configured.

    slime reads `global_batch_size`, in rollouts, when it cuts a step into updates, and sends the trainer what it read.
    """
    configured = getattr(args, _CONFIGURED, None) or args.global_batch_size
    if configured is None:
        return
    setattr(args, _CONFIGURED, configured)
    updates = max(1, args.rollout_batch_size * args.n_samples_per_prompt // configured)
    args.global_batch_size = max(1, rollouts // updates)


def restore_batch(args: Any) -> None:
    """As configured again: slime's own figures are counted with it."""
    args.global_batch_size = getattr(args, _CONFIGURED, None) or args.global_batch_size


def _rollout(sample: Any) -> Any:
    return sample.rollout_id if sample.rollout_id is not None else id(sample)


def _normalized(rewards: dict[Any, float], *, scaled: bool) -> dict[Any, float]:
    """What each rollout is above the mean of its group, in units of the group's spread."""
    mean = statistics.fmean(rewards.values())
    spread = statistics.stdev(rewards.values()) + _TINY if scaled and len(rewards) > 1 else 1.0
    return {rollout: (reward - mean) / spread for rollout, reward in rewards.items()}
