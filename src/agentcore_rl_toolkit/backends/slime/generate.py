"""slime's `--custom-generate-function-path`: one sample at a time, inside slime's own rollout function.

For slime's fully asynchronous rollouts, and other loops that schedule samples themselves. slime forms the groups here,
so a failed rollout keeps its slot: masked and removed. `rewards.post_process` then keeps it out of the group's mean and
out of the loss's divisor.
"""

from __future__ import annotations

from typing import Any

from ...rollout import Rollout
from .convert import has_routes, payload_of, to_placeholder, to_rows
from .hook_resources import HookResources, open_resources, rollout_options

_SAMPLING_NAMES = {"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> list[Any]:
    """slime's hook: run the sample's payload and return its rows, or one masked sample if it can't be trained on."""
    resources = open_resources(args)
    asked = {ours: sampling_params.get(slimes) for slimes, ours in _SAMPLING_NAMES.items()}
    options = rollout_options(args, **asked) | {"evaluation": evaluation}
    if sample.index is not None:  # slime counts the samples of a run, and those of each evaluation
        options["seed"] = f"{args.rollout_seed}/{'held-out' if evaluation else 'train'}/{sample.index}"
    rollout = await _run_payload(resources, payload_of(sample), options)
    replay = resources.replay
    if rollout is not None and rollout.trained and (evaluation or replay is None or has_routes(rollout, replay)):
        return to_rows(rollout, sample, resources.decode, replay)
    return [to_placeholder(rollout, sample, resources.padding, resources.settings.failed_reward, replay)]


async def _run_payload(resources: HookResources, payload: dict[str, Any], options: dict[str, Any]) -> Rollout | None:
    """Run one rollout, with the retries of the failure table; the last attempt."""
    last: Rollout | None = None
    options |= {"n": 1, "oversample": 0, "max_batch_tokens": None}
    async for group in resources.runner.run_async([payload], **options):
        last = next(iter((*group.rollouts, *reversed(group.others))), None)
    return last
