"""slime's `--custom-reward-post-process-path`: rewards → advantages, and how many rollouts an update takes.

slime's own normalization goes by position, which is wrong if a rollout has several rows or a group is short. Here
`group_index` identifies a group, and every rollout in it (`rollout_id`) counts once.

With `credit=turn` a sample brings the advantages of its tokens. slime carries them to its trainer as the sample's
reward, where `set_advantages` (`--custom-advantage-function-path`) takes them out.
"""

from __future__ import annotations

import copy
import importlib
import statistics
from collections.abc import Sequence
from typing import Any

_CENTRED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_SCALED = ("grpo", "gspo", "cispo")
_TINY = 1e-6  # slime's own
_CONFIGURED = "agentcore_global_batch_size"
ADVANTAGES = "agentcore_rl_toolkit.backends.slime.rewards.set_advantages"
"""slime's name for our hook in its trainer, with turn credit."""


def post_process(args: Any, samples: list[Any]) -> tuple[list[float], list[Any]]:
    """slime's hook: the raw rewards, and the advantage of each sample, equal for all rows of a rollout.

    With turn credit, a list of advantages for each sample, one per token of its response. It adds masked samples to the
    list if the rollouts don't divide into the configured number of updates.
    """
    raw, advantages = _advantages(args, samples)
    return _fill_updates(args, samples, raw, advantages)


def _advantages(args: Any, samples: list[Any]) -> tuple[list[float], list[Any]]:
    raw = [sample.get_reward_value(args) for sample in samples]
    centred = args.advantage_estimator in _CENTRED and args.rewards_normalization
    if centred:
        _remove_lone(samples)
    _hide_removed(samples)
    if getattr(args, "custom_advantage_function_path", None) == ADVANTAGES:
        return raw, [_token_advantages(sample) for sample in samples]
    if not centred:
        return raw, [0.0 if sample.remove_sample else reward for sample, reward in zip(samples, raw, strict=True)]
    groups: dict[Any, dict[Any, float]] = {}
    for sample, reward in zip(samples, raw, strict=True):
        if not sample.remove_sample:
            groups.setdefault(sample.group_index, {})[_rollout_key(sample)] = reward
    scaled = args.advantage_estimator in _SCALED and args.grpo_std_normalization
    advantages = {group: _normalized(rewards, scaled=scaled) for group, rewards in groups.items()}
    return raw, [
        0.0 if sample.remove_sample else advantages[sample.group_index][_rollout_key(sample)] for sample in samples
    ]


def set_advantages(args: Any, rollout_data: dict[str, Any]) -> None:
    """slime's hook in its trainer: each token's advantage, and for slime's figures each sample's mean as its reward."""
    import torch

    cut = importlib.import_module("slime.backends.megatron_utils.cp_utils").slice_log_prob_with_cp
    given, device = rollout_data["rewards"], rollout_data["kl"][0].device
    lengths = zip(given, rollout_data["total_lengths"], rollout_data["response_lengths"], strict=True)
    rollout_data["advantages"] = [
        torch.tensor(cut(values, total, response), dtype=torch.float32, device=device)
        for values, total, response in lengths
    ]
    rollout_data["returns"] = [values.clone() for values in rollout_data["advantages"]]
    rollout_data["rewards"] = [statistics.fmean(values) for values in given]


def _token_advantages(sample: Any) -> list[float]:
    known = None if sample.remove_sample else sample.metadata["agentcore"].get("advantages")
    return known or [0.0] * sample.response_length


def fit_batch(args: Any, rollouts: int) -> int:
    """Let slime train on all `rollouts` of this step, in the configured number of updates.

    slime reads `global_batch_size`, in rollouts, when it divides a step into updates, and sends it to the trainer. It
    fills each update and drops what is left over, so every update gets the same number of places. Returns how many
    updates have a rollout less than that.
    """
    configured = getattr(args, _CONFIGURED, None) or args.global_batch_size
    if configured is None or not rollouts:
        return 0
    setattr(args, _CONFIGURED, configured)
    updates = min(rollouts, max(1, args.rollout_batch_size * args.n_samples_per_prompt // configured))
    args.global_batch_size = -(-rollouts // updates)
    return int(args.global_batch_size * updates - rollouts)


def _fill_updates(
    args: Any, samples: list[Any], raw: list[float], advantages: list[Any]
) -> tuple[list[float], list[Any]]:
    """Fill the last updates, which are a rollout short, with a masked copy each.

    slime's loss divides by the number of places, so the rollouts of a short update get larger advantages in return.
    Megatron's loss by tokens has another divisor, which a masked copy doesn't change.
    """
    places = {key: place for place, key in enumerate(dict.fromkeys(map(_rollout_key, samples)))}
    short = fit_batch(args, len(places))
    if not short:
        return raw, advantages
    size = args.global_batch_size - 1  # of a short update
    full = len(places) - short * size
    factor = 1.0 if getattr(args, "calculate_per_token_loss", False) else (size + 1) / size
    of_sample = [places[_rollout_key(sample)] for sample in samples]
    advantages = [
        _scaled(value, factor if place >= full else 1.0) for value, place in zip(advantages, of_sample, strict=True)
    ]
    unused = 1 + max((sample.rollout_id for sample in samples if sample.rollout_id is not None), default=-1)
    for end in range(len(places), full, -size):
        at = of_sample.index(end - 1) + 1
        filler = copy.copy(samples[at - 1])
        filler.rollout_id, filler.remove_sample = unused + end, True
        samples.insert(at, filler)
        raw, advantages = (
            [*raw[:at], raw[at - 1], *raw[at:]],
            [*advantages[:at], _scaled(advantages[at - 1], 0.0), *advantages[at:]],
        )
    return raw, advantages


def _scaled(advantage: Any, factor: float) -> Any:
    """An advantage, or those of a sample's tokens, times a factor."""
    return [value * factor for value in advantage] if isinstance(advantage, list) else advantage * factor


def restore_batch(args: Any) -> None:
    """Restore the configured size, which slime's own figures use."""
    args.global_batch_size = getattr(args, _CONFIGURED, None) or args.global_batch_size


def _remove_lone(samples: Sequence[Any]) -> None:
    """Remove a rollout that is the only one left in its group, because it can't be compared with another."""
    kept: dict[Any, set[Any]] = {}
    short = {sample.group_index for sample in samples if sample.remove_sample}
    for sample in samples:
        if not sample.remove_sample:
            kept.setdefault(sample.group_index, set()).add(_rollout_key(sample))
    for sample in samples:
        if sample.group_index in short and len(kept.get(sample.group_index, ())) == 1:
            sample.remove_sample = True


def _hide_removed(samples: Sequence[Any]) -> None:
    """Turn removed samples into masked rows of rollouts that are trained on.

    slime's loss is a sum over rollouts divided by the number of distinct rollout ids. A removed sample with its own id
    would make every other rollout count less.
    """
    kept = [sample for sample in samples if not sample.remove_sample and sample.rollout_id is not None]
    homes = {sample.group_index: sample.rollout_id for sample in reversed(kept)}
    for sample in samples:
        if sample.remove_sample and kept:
            sample.rollout_id = homes.get(sample.group_index, kept[0].rollout_id)


def _rollout_key(sample: Any) -> Any:
    return sample.rollout_id if sample.rollout_id is not None else id(sample)


def _normalized(rewards: dict[Any, float], *, scaled: bool) -> dict[Any, float]:
    """Each rollout's distance from the mean of its group, in standard deviations if `scaled`."""
    mean = statistics.fmean(rewards.values())
    spread = statistics.stdev(rewards.values()) + _TINY if scaled and len(rewards) > 1 else 1.0
    return {rollout: (reward - mean) / spread for rollout, reward in rewards.items()}
