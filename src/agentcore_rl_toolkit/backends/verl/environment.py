"""Overrides that depend on this machine: its packages and its cores. Looks for packages and imports none.

verl's trainer always has a TransferQueue: a controller and storage units, each an actor that claims a CPU of Ray for
good. The pool that trains and samples claims three for each GPU, and placing actors that claim none takes one more.
With fewer CPUs Ray waits forever, silently. Ray's CPUs are only a number: it accepts more than there are cores.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ..base import is_installed

ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
CPUS = "ray_kwargs.ray_init.num_cpus"
DEFAULT_UNITS = 8
_FEWEST_UNITS = 2
"""The least that TransferQueue accepts on one node."""
_PER_GPU, _CONTROLLER, _FREE = 3, 1, 1
_VALUE_HEAD = "AutoModelForCausalLMWithValueHead"


def attention_overrides() -> dict[str, Any]:
    """Use sdpa if verl is installed without flash-attn, which it asks Transformers for by default.

    verl's packing (`use_remove_padding`) stays on: Transformers masks packed sequences by their positions.
    """
    return {f"+{ATTENTION}": "sdpa"} if is_installed("verl") and not is_installed("flash_attn") else {}


def trl_conflict() -> str | None:
    """A warning if the TRL that is installed here keeps verl from building its model.

    verl's `apply_monkey_patch` imports TRL's value head, if it finds TRL, from `trl.experimental.ppo` or from `trl`.
    Newer TRL has it in neither.
    """
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    if (root / "experimental" / "ppo").is_dir() or _VALUE_HEAD in Path(spec.origin).read_text():
        return None
    return (
        f"warning: TRL {metadata.version('trl')} is installed here without {_VALUE_HEAD}, which verl imports to build "
        "the model, so the run will end with an ImportError: install [verl] and [trl] in separate environments"
    )


def claimed_cpus(gpus: int, units: int = DEFAULT_UNITS) -> int:
    """The CPUs that Ray needs for verl on one node.

    >>> claimed_cpus(gpus=8), claimed_cpus(gpus=1, units=2)
    (34, 7)
    """
    return units + _PER_GPU * gpus + _CONTROLLER + _FREE


def fit_cores(gpus: int, cores: int | None, units: int | None = None) -> dict[str, Any]:
    """Overrides that let verl start on one node with this many cores; `units` is the user's own number.

    >>> fit_cores(gpus=1, cores=13), fit_cores(gpus=1, cores=7), fit_cores(gpus=1, cores=2)[CPUS]
    ({}, {'transfer_queue.backend.SimpleStorage.num_data_storage_units': 2}, 7)
    """
    if cores is None or cores >= claimed_cpus(gpus, units or DEFAULT_UNITS):
        return {}
    needed = claimed_cpus(gpus, units or _FEWEST_UNITS)
    return {UNITS: units or _FEWEST_UNITS} | ({CPUS: needed} if cores < needed else {})


def core_overrides(gpus: int, nodes: int, units: int | None = None) -> dict[str, Any]:
    """`fit_cores` for this machine; nothing for a cluster, whose owner decides its CPUs."""
    return fit_cores(gpus, os.cpu_count(), units) if nodes == 1 and starts_ray(os.environ) else {}


def starts_ray(environment: Mapping[str, str]) -> bool:
    """Whether verl starts its own Ray. It joins one that a variable names, or that `ray start` started here."""
    folder = environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp"
    return not environment.get("RAY_ADDRESS") and not (Path(folder) / "ray" / "ray_current_cluster").exists()
