"""`AppWorldWorld`: a task of AppWorld's, run and judged by AppWorld itself.

The package `appworld` pins pydantic 1 and much else, which no agent's process can share: it is installed in an
environment of its own and runs there, in a child process (`_appworld.py`). Two variables say where:

    APPWORLD_PYTHON   its interpreter        default: appworld/bin/python in this environment's folder
    APPWORLD_ROOT     the folder of `data/`  default: the agent's folder if it has one, else that of the environment
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit.errors import ConfigError

from .base import Evaluation
from .child import Child, ChildLost

WORKER = Path(__file__).with_name("_appworld.py")
_OPEN_SECONDS = 300.0
_HINT = "set it up as README.md says, under AppWorld"


def appworld_python() -> str:
    """The interpreter that has AppWorld."""
    return os.environ.get("APPWORLD_PYTHON") or os.path.join(sys.prefix, "appworld", "bin", "python")


def appworld_root() -> str:
    """The folder that AppWorld's `data` is in."""
    beside = Path(__file__).resolve().parents[1]
    found = str(beside) if (beside / "data" / "tasks").is_dir() else os.path.join(sys.prefix, "appworld")
    return os.environ.get("APPWORLD_ROOT") or found


class AppWorldWorld:
    """A task by its id, such as `82e2fac_1`."""

    def __init__(self, task_id: str, *, timeout_seconds: int = 100, max_interactions: int = 1000) -> None:
        self._timeout = timeout_seconds
        self._child = start_worker()
        try:
            opened = self._ask(
                {
                    "do": "open",
                    "task_id": task_id,
                    "timeout_seconds": timeout_seconds,
                    "max_interactions": max_interactions,
                },
                _OPEN_SECONDS,
            )
        except BaseException:
            self.close()
            raise
        self.instruction = str(opened["instruction"])

    def __enter__(self) -> AppWorldWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, code: str) -> str:
        """What AppWorld says to the code."""
        return str(self._ask({"do": "execute", "code": code})["output"])

    def completed(self) -> bool:
        """Whether `apis.supervisor.complete_task` was called."""
        return bool(self._ask({"do": "completed"})["completed"])

    def evaluate(self) -> Evaluation:
        """AppWorld's own tests of the task."""
        report = self._ask({"do": "evaluate"})
        return Evaluation(passed=tuple(report["passed"]), failed=tuple(report["failed"]))

    def close(self) -> None:
        """End AppWorld's process; what it wrote goes with it."""
        self._child.close()

    def _ask(self, message: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
        return ask_worker(self._child, message, seconds or self._timeout + 60)


def start_worker() -> Child:
    """AppWorld's process, with its own root: data is read where it is, and what is written stays apart."""
    python, data = appworld_python(), os.path.join(appworld_root(), "data")
    if not os.path.exists(python):
        raise ConfigError(f"AppWorld's interpreter {python} does not exist", hint=_HINT)
    if not os.path.isdir(data):
        raise ConfigError(f"AppWorld's data is not in {data}", hint=_HINT)
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return Child([python, "-I", "-B", "-X", "utf8", str(WORKER), os.path.abspath(data)], {**kept, "LANG": "C.UTF-8"})


def ask_worker(child: Child, message: dict[str, Any], seconds: float) -> dict[str, Any]:
    """An answer of AppWorld's process, or a `ConfigError` with what it said instead."""
    try:
        reply = child.ask(message, seconds)
    except ChildLost as lost:
        raise ConfigError(f"AppWorld's process ended: {lost}", hint=_HINT) from None
    except TimeoutError:
        raise TimeoutError(f"AppWorld did not answer within {seconds:g} seconds") from None
    if "error" in reply:
        raise ConfigError(f"AppWorld: {reply['error']}", hint=_HINT)
    return reply
