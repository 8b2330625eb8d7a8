"""`BuiltinWorld`: a few apps of our own. Their state is here; code runs in a child and reaches it by APIs only."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from .apps import ApiFailure, call_api
from .base import Evaluation
from .child import Child, ChildLost
from .tasks import make_task

_SHELL = Path(__file__).with_name("_shell.py")
_MOST_CALLS = 1000
_START_SECONDS = 60.0


class BuiltinWorld:
    """A task of the built-in world.

    >>> with BuiltinWorld("debts-17") as world:
    ...     world.execute("print(apis.supervisor.show_profile()['first_name'])")
    'Sam\\n'
    """

    def __init__(self, task_id: str, *, timeout_seconds: float = 10.0) -> None:
        self._task = make_task(task_id)
        self._state = self._task.state.copy()
        self._timeout = timeout_seconds
        self._child: Child | None = None
        self._calls = 0
        self.instruction = self._task.instruction

    def __enter__(self) -> BuiltinWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, code: str) -> str:
        """Run code in the child; one that takes too long, or ends the process, loses its variables."""
        self._calls = 0
        try:
            child = self._child or self._start()
            return str(child.ask({"code": code}, self._timeout, self._answer).get("output", ""))
        except TimeoutError:
            self.close()
            return f"Execution failed: it took more than {self._timeout:g} seconds. All variables are lost."
        except ChildLost as lost:
            self.close()
            return f"Execution failed: the interpreter ended ({lost}). All variables are lost."

    def completed(self) -> bool:
        """Whether `complete_task` was called."""
        return self._state.task["status"] is not None

    def evaluate(self) -> Evaluation:
        """Hold the task's requirements against the state at the start and now."""
        start = self._task.state
        outcomes = {name: holds(start, self._state) for name, holds in self._task.requirements}
        return Evaluation(
            passed=tuple(name for name, held in outcomes.items() if held),
            failed=tuple(name for name, held in outcomes.items() if not held),
        )

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _start(self) -> Child:
        """A fresh interpreter; its start isn't the code's time."""
        command = [sys.executable, "-I", "-B", "-X", "utf8", str(_SHELL)]
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
        child = self._child = Child(command, {**kept, "LANG": "C.UTF-8"})
        child.ask({"code": "pass"}, _START_SECONDS)
        return child

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        self._calls += 1
        if self._calls > _MOST_CALLS:
            return {"error": f"more than {_MOST_CALLS} API calls in one execution"}
        try:
            app, api = question["call"]
            return {"value": call_api(self._state, str(app), str(api), dict(question["arguments"]))}
        except (ApiFailure, KeyError, TypeError, ValueError) as failure:
            return {"error": str(failure)}
