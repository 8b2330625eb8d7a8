"""What code costs, in steps instead of seconds: the same on every machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import agentcore_rl_toolkit

_OURS = (str(Path(agentcore_rl_toolkit.__file__).parent), "<string>")  # the latter: what dataclasses make


def steps(run: Callable[[], object], *, of: str = "line") -> int:
    """Lines of the package's own code that `run` runs; or calls in it, apart from those of generators."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(_OURS):
            return None
        count += event == of and (of == "line" or frame.f_code.co_name != "<genexpr>")
        return trace

    before = sys.gettrace()
    collecting = gc.isenabled()
    gc.disable()  # what others left behind would be cleaned up in here
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return count
