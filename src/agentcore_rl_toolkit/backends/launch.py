"""Starting a trainer that has a program of its own, ending it when asked to, and what such a run leaves behind.

The program gets a process group of its own, and only what is in that group is ever signalled.

command.sh     what was started, as a shell would be told it
summary.json   how it ended
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AgentCoreRLError, ConfigError
from .base import Plan

logger = logging.getLogger(__name__)

STAGES = ((signal.SIGINT, 30.0), (signal.SIGTERM, 10.0))
"""What an interrupted program is told, and the seconds it has to end; then it is killed."""
_PAUSE = 0.05
_BY_SIGNAL = (128 + signal.SIGINT, 128 + signal.SIGTERM)

Signals = queue.SimpleQueue[int]
"""Signals that came; a handler may put one there at any time."""


@dataclass(frozen=True)
class Ending:
    """How a program ended."""

    code: int
    """As a shell has it: for a signal, 128 and its number."""
    interrupted: bool

    @property
    def how(self) -> str:
        """In words."""
        if self.code <= 128:
            return f"ended with code {self.code}"
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(self.code - 128).name}"
        return f"ended with code {self.code}"


def launch(plan: Plan, *, stages: Sequence[tuple[int, float]] = STAGES) -> Ending:
    """Carry out a plan. Ctrl-C and SIGTERM end its program and what that started, by stages; another one skips one."""
    for path, content in plan.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content)
    with _listening() as came:
        try:
            process = subprocess.Popen(plan.command, env={**os.environ, **plan.environment}, start_new_session=True)
        except OSError as error:
            raise ConfigError(f"{plan.command[0]} can't be started: {error.strerror}") from error
        try:
            number = _wait(process, came)
            if number is None:
                code = process.returncode if process.returncode >= 0 else 128 - process.returncode
                return Ending(code, interrupted=code in _BY_SIGNAL)
            logger.warning("%s: ending %s; once more to hurry", signal.Signals(number).name, plan.backend)
        finally:
            _end(process, came, stages)
        return Ending(128 + number, interrupted=True)


def run(plan: Plan, folder: Path, name: str, look: Callable[[], Mapping[str, Any]] = dict) -> dict[str, Any]:
    """Launch the trainer `name`, and leave its command and its summary in the run's folder; gives the summary.

    `look` gives further figures once it has ended. A program that failed is an error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "command.sh").write_text(plan.text() + "\n")
    ending = launch(plan)
    summary: dict[str, Any] = {"backend": plan.backend, "output": str(folder)}
    summary |= {"exit_code": ending.code, "interrupted": ending.interrupted, **look()}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if ending.code and not ending.interrupted:
        hint = f"its output above says why; it was started with {folder / 'command.sh'}"
        raise AgentCoreRLError(f"{name} {ending.how}", hint=hint)
    return summary


@contextlib.contextmanager
def _listening() -> Iterator[Signals]:
    """Signals of this process, in place of what they would do; another thread than the main one hears none."""
    came: Signals = queue.SimpleQueue()
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    known = {n: signal.signal(n, lambda number, _: came.put(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in known.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes], came: Signals) -> int | None:
    """Until the program has ended, or a signal came: which one."""
    while process.poll() is None:
        with contextlib.suppress(queue.Empty):
            return came.get(timeout=_PAUSE * 4)
    return None


def _end(process: subprocess.Popen[bytes], came: Signals, stages: Sequence[tuple[int, float]]) -> None:
    """End the program, if it runs, with all of its group."""
    if process.returncode is not None:
        return
    for number, seconds in stages:
        _tell(process, number)
        deadline = time.monotonic() + seconds
        while _runs(process):
            if time.monotonic() > deadline or not came.empty():
                break
            time.sleep(_PAUSE)
        else:
            return
        with contextlib.suppress(queue.Empty):
            came.get_nowait()
    _tell(process, signal.SIGKILL)
    process.wait()


def _runs(process: subprocess.Popen[bytes]) -> bool:
    """Whether the program, or anything else of its group, is still there."""
    return process.poll() is None or _tell(process, 0)


def _tell(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal the program's group; False if nobody is left in it."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS, of a group of zombies
        return False
    return True
