"""slime: Megatron trains, SGLang samples, agents' rollouts in between.

    backend.py    the settings of a run, what can be said of it before it starts, and its start
    runner.py     SlimeRunner: the same from Python
    names.py      other names of settings: slime's, the first toolkit's
    command.py    a run's settings as slime's flags and its custom configuration
    checkout.py   what a checkout of slime says of itself: the flags of a model, the flags it knows
    driver.py     the program that is started: slime's train.py on a Ray cluster
    data.py       payloads as slime's data rows, and back
    convert.py    rollouts → slime's samples
    rewards.py    post_process: rewards → advantages, by group and rollout
    rollout.py    generate_rollout: slime's rollout function
    evaluate.py   … when it evaluates
    generate.py   generate: slime's generate function, one rollout at a time
    plug.py       what stays open between the calls of one process: gateway, client, runner
    router.py     slime's SGLang router as the gateway's engine
    theirs.py     slime's own types

slime is not on PyPI: clone it, and give its folder with `slime_dir` or SLIME_DIR. Our side needs the extra `slime`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import lazily

if TYPE_CHECKING:
    from .backend import SlimeSettings
    from .rewards import post_process
    from .rollout import generate_rollout
    from .runner import SlimeRunner

__all__ = ["SlimeRunner", "SlimeSettings", "generate_rollout", "post_process"]

_HOMES = {
    "SlimeRunner": ".runner",
    "SlimeSettings": ".backend",
    "generate_rollout": ".rollout",
    "post_process": ".rewards",
}
__getattr__ = lazily(__name__, _HOMES, "slime")
