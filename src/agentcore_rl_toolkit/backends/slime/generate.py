"""slime's `--custom-generate-function-path`: one sample at a time, with slime's own rollout function around it.

For slime's fully asynchronous rollouts, and whatever else drives samples by itself. Groups are slime's here, so a
rollout that failed keeps its slot: masked, removed, and with `rewards.post_process` out of the group's mean and of the
loss's divisor.
"""

from __future__ import annotations

from typing import Any

from ...rollout import Rollout
from .convert import has_routes, to_nothing, to_rows
from .data import payload_of
from .plug import Plug, options_of, plug_for

_NAMES = {"max_new_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> list[Any]:
    """slime's hook: run the sample's payload; gives its rows, or one masked sample if it can't be trained on."""
    plug = plug_for(args)
    asked = {ours: sampling_params.get(theirs) for theirs, ours in _NAMES.items()}
    rollout = await _rollout(plug, payload_of(sample), options_of(args, **asked))
    if rollout is None or not rollout.trained or not _replayable(plug, rollout, evaluation):
        return [to_nothing(rollout, sample, plug.padding, plug.settings.failed_reward, plug.replay)]
    return to_rows(rollout, sample, plug.decode, plug.replay)


async def _rollout(plug: Plug, payload: dict[str, Any], options: dict[str, Any]) -> Rollout | None:
    """One rollout, tried again as the failure table says; the last that came of it."""
    last: Rollout | None = None
    options |= {"n": 1, "oversample": 0, "max_batch_tokens": None}
    async for group in plug.runner.run_async([payload], **options):
        last = next(iter((*group.rollouts, *reversed(group.others))), None)
    return last


def _replayable(plug: Plug, rollout: Rollout, evaluation: bool) -> bool:
    return evaluation or plug.replay is None or has_routes(rollout, plug.replay)
