"""The program that a run starts: slime's train.py, as the driver of a Ray cluster.

    python -m agentcore_rl_toolkit.backends.slime.driver SLIME/train.py FLAG …

It joins the cluster that RAY_ADDRESS names, or one that runs on this machine, or else starts one and ends it again. No
process that it did not start is touched: what belongs to a run on a joined cluster ends with its driver.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

_PASSED_ON = ("PYTHONPATH", "CUDA_DEVICE_MAX_CONNECTIONS", "AWS_REGION", "AWS_DEFAULT_REGION", "MASTER_ADDR")
_PASSED_ON_BY_PREFIX = ("NCCL_", "AWS_ENDPOINT_URL", "SGLANG_")
"""Variables that workers on other machines get too. No secrets: Ray shows them to whoever asks."""


def main(words: list[str]) -> int:
    """Run slime's script with its flags; gives its exit code."""
    import ray

    script, *_ = words
    ray.init(runtime_env={"env_vars": passed_on(dict(os.environ))})
    signal.signal(signal.SIGTERM, _interrupted)  # in place of Ray's own, which dumps its stack
    sys.argv = words
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except KeyboardInterrupt:
        return 130
    finally:
        ray.shutdown()
    return 0


def passed_on(environment: dict[str, str]) -> dict[str, str]:
    """What the workers of a cluster get of this process's environment.

    >>> passed_on({"NCCL_NVLS_ENABLE": "1", "AWS_SECRET_ACCESS_KEY": "s", "HOME": "/root"})
    {'NCCL_NVLS_ENABLE': '1'}
    """
    names = [name for name in environment if name in _PASSED_ON or name.startswith(_PASSED_ON_BY_PREFIX)]
    return {name: environment[name] for name in names}


def _interrupted(*_: Any) -> None:
    """SIGTERM ends a run as Ctrl-C does: with what Ray has to clean up."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
