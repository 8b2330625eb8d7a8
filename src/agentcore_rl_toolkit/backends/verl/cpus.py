"""How many CPUs verl's actors claim of Ray, and what verl is told where there are fewer. Pure but for a look at Ray.

verl's trainer always has a TransferQueue: a controller and storage units, each an actor that claims a CPU for good. The
pool that trains and samples claims three for each GPU, and one more has to be free to place what claims none. Ray waits
for CPUs without an end and without a word, and its CPUs are a number: it may be told more of them than there are cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
CPUS = "ray_kwargs.ray_init.num_cpus"
VERLS_UNITS = 8
_FEW_UNITS = 2
"""What TransferQueue wants at least on one node."""
_OF_A_GPU, _CONTROLLER, _FREE = 3, 1, 1


def claimed(gpus: int, units: int = VERLS_UNITS) -> int:
    """The CPUs that Ray has to have for verl on one node.

    >>> claimed(gpus=8), claimed(gpus=1, units=2)
    (34, 7)
    """
    return units + _OF_A_GPU * gpus + _CONTROLLER + _FREE


def fitted(gpus: int, cores: int | None, units: int | None = None) -> dict[str, Any]:
    """What verl is told so that it starts on one node of so many cores: nothing, where they are enough.

    `units` are those that were asked for, if they were.

    >>> fitted(gpus=1, cores=13), fitted(gpus=1, cores=7), fitted(gpus=1, cores=2)[CPUS]
    ({}, {'transfer_queue.backend.SimpleStorage.num_data_storage_units': 2}, 7)
    """
    if cores is None or cores >= claimed(gpus, units or VERLS_UNITS):
        return {}
    needed = claimed(gpus, units or _FEW_UNITS)
    return {UNITS: units or _FEW_UNITS} | ({CPUS: needed} if cores < needed else {})


def starts_ray(environment: Mapping[str, str]) -> bool:
    """Whether verl starts a Ray of its own: it joins one that a variable names, or that `ray start` started here."""
    place = environment.get("RAY_TMPDIR") or environment.get("TMPDIR") or "/tmp"
    return not environment.get("RAY_ADDRESS") and not (Path(place) / "ray" / "ray_current_cluster").exists()


def here(gpus: int, nodes: int, units: int | None = None) -> dict[str, Any]:
    """What verl is told on this machine; a cluster's CPUs are the business of whoever started it."""
    return fitted(gpus, os.cpu_count(), units) if nodes == 1 and starts_ray(os.environ) else {}
