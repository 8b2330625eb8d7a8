"""Moments on a clock that nobody sets, to count idle time with, also over a restart of the gateway.

On Linux, all processes since the machine was started share one monotonic clock. A moment of another start, or of a
system that doesn't tell its starts apart, says nothing: what was written then counts as written when this one began.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

_BEGAN = time.monotonic()


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return ""


_BOOT = _boot()


def moment() -> tuple[str, float]:
    """Now, as it is written to a log."""
    return _BOOT, time.monotonic()


def recall(written: Any) -> float:
    """A moment from a log, on this process's monotonic clock."""
    if _BOOT and isinstance(written, (list, tuple)) and len(written) == 2 and written[0] == _BOOT:
        return min(float(written[1]), time.monotonic())
    return _BEGAN
