"""What a worker leaves to its successor: its replicas, its pause and its weight version.

They are in a file without a name, which the process that starts workers keeps open.
"""

from __future__ import annotations

import logging
import os

import msgspec

from ..record.log import WeightState

logger = logging.getLogger(__name__)
_MOST_BYTES = 1 << 20


class WorkerState(msgspec.Struct):
    weights: WeightState
    engines: list[str]
    """The names of its replicas; empty if its engine has none."""


class HandedState:
    """Reads what the predecessor wrote, and writes it for the successor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> WorkerState | None:
        """None for the first worker."""
        line, end, _ = os.pread(self._descriptor, _MOST_BYTES, 0).partition(b"\n")
        return msgspec.json.decode(line, type=WorkerState) if end else None

    def write(self, state: WorkerState) -> None:
        """One call writes the line: a worker that is killed leaves the old one or the new one."""
        try:
            os.pwrite(self._descriptor, msgspec.json.encode(state) + b"\n", 0)
        except OSError as error:
            logger.error("a worker that is started again will not have its present state: %s", error)
