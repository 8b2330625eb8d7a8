"""slime for tests: a checkout if SLIME_DIR names one, and otherwise stand-ins for the types it documents.

The stand-ins are written from slime's documentation, have what it says and no more, and are on the path only where a
test asks for them.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

CHECKOUT = os.environ.get("SLIME_DIR")
PLACE = Path(CHECKOUT).resolve() if CHECKOUT else Path(__file__).parent / "standin"

if str(PLACE) not in sys.path:
    sys.path.append(str(PLACE))


def sample(**fields: Any) -> Any:
    """One of slime's samples, as its data source makes them."""
    from slime.utils.types import Sample

    return Sample(**{"group_index": 0, "index": 0, "metadata": {"prompt": "hi"}} | fields)


def source_group(n: int, group_index: int = 0, **metadata: Any) -> list[Any]:
    """The samples of one row: one for each slot."""
    known = metadata or {"prompt": "hi"}
    return [sample(group_index=group_index, index=group_index * n + i, metadata=dict(known)) for i in range(n)]


class Source:
    """A data source that goes round its rows for ever, and counts groups and samples as slime's does."""

    def __init__(self, rows: list[dict[str, Any]], n: int) -> None:
        self._rows, self._n = rows, n
        self.groups = 0

    def get_samples(self, count: int) -> list[list[Any]]:
        found = []
        for _ in range(count):
            found.append(source_group(self._n, self.groups, **self._rows[self.groups % len(self._rows)]))
            self.groups += 1
        return found


def arguments(**changes: Any) -> Namespace:
    """slime's arguments, as far as rollouts, rewards and batches are concerned."""
    known: dict[str, Any] = {
        "agentcore": {},
        "hf_checkpoint": "",
        "sglang_router_ip": "127.0.0.1",
        "sglang_router_port": 0,
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "global_batch_size": 4,
        "rollout_temperature": 1.0,
        "rollout_seed": 42,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_max_response_len": 16,
        "rollout_max_context_len": None,
        "rollout_stop": None,
        "rollout_stop_token_ids": None,
        "eval_max_context_len": None,
        "eval_datasets": [],
        "input_key": "prompt",
        "metadata_key": "metadata",
        "reward_key": None,
        "advantage_estimator": "grpo",
        "custom_advantage_function_path": None,
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "use_rollout_routing_replay": False,
        "num_layers": 1,
        "moe_router_topk": 2,
        "use_dynamic_batch_size": True,
        "max_tokens_per_gpu": 64,
        "micro_batch_size": 1,
        "balance_data": False,
        "balance_by_flops": False,
    }
    return Namespace(**known | changes)
