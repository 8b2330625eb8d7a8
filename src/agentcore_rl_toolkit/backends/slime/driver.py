"""The program that a run starts: slime's train.py, as the driver of a Ray cluster.

    python -m agentcore_rl_toolkit.backends.slime.driver SLIME/train.py FLAG …

It joins the cluster that RAY_ADDRESS names or that runs on this machine; otherwise it starts one and ends it again. It
never ends a process that it did not start: Ray ends a run's actors on a joined cluster when their driver exits.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

_COPIED = ("PYTHONPATH", "CUDA_DEVICE_MAX_CONNECTIONS", "AWS_REGION", "AWS_DEFAULT_REGION", "MASTER_ADDR")
_COPIED_PREFIXES = ("NCCL_", "AWS_ENDPOINT_URL", "SGLANG_")
"""Variables to copy to workers on other machines. They hold no secrets, because Ray's dashboard shows them."""


def main(words: list[str]) -> int:
    """Run slime's script with its flags and return its exit code."""
    import ray

    script, *_ = words
    ray.init(runtime_env={"env_vars": worker_environment(dict(os.environ))})
    signal.signal(signal.SIGTERM, _interrupt)  # in place of Ray's own, which dumps its stack
    sys.argv = words
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except KeyboardInterrupt:
        return 130
    finally:
        ray.shutdown()
    return 0


def worker_environment(environment: dict[str, str]) -> dict[str, str]:
    """The part of this process's environment that the workers of a cluster get.

    >>> worker_environment({"NCCL_NVLS_ENABLE": "1", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/root"})
    {'NCCL_NVLS_ENABLE': '1'}
    """
    names = [name for name in environment if name in _COPIED or name.startswith(_COPIED_PREFIXES)]
    return {name: environment[name] for name in names}


def _interrupt(*_: Any) -> None:
    """SIGTERM ends a run as Ctrl-C does, so Ray can clean up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
