"""slime: Megatron trains, SGLang samples, and agents' rollouts run in between.

In: `SlimeSettings`, and in slime's own process its arguments and its samples. Out: the command that starts slime, and
samples with their advantages for its trainer. It never patches slime: slime calls the hooks by their path.

slime is not on PyPI: clone it, and give its folder with `slime_dir` or SLIME_DIR. Our side needs the extra `slime`.

Imports `backends.loop`, `engine`, `gateway`, `rollout`, `studio`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import lazy_attributes

if TYPE_CHECKING:
    from .backend import SlimeRunner, SlimeSettings
    from .rewards import post_process
    from .rollout import generate_rollout

__all__ = ["SlimeRunner", "SlimeSettings", "generate_rollout", "post_process"]

_BACKEND = ["SlimeRunner", "SlimeSettings"]
__getattr__ = lazy_attributes(
    __name__, "slime", backend=_BACKEND, rollout=["generate_rollout"], rewards=["post_process"]
)
