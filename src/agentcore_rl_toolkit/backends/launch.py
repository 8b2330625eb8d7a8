"""Trainers that run as a separate program: write its overrides, start it, end it on a signal, and write its summary.

The program runs in its own process group, and only processes of that group are ever signalled. A run leaves
`command.sh` (the program as a shell script) and `summary.json` (how it ended) in its folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AgentCoreRLError, ConfigError
from .base import TrainingPlan
from .settings import ENV_FILE

logger = logging.getLogger(__name__)

STAGES = ((signal.SIGINT, 30.0), (signal.SIGTERM, 10.0))
"""The signals an interrupted program gets, each with the seconds it has to exit; then it is killed."""
_POLL_SECONDS = 0.05
_BY_SIGNAL = (128 + signal.SIGINT, 128 + signal.SIGTERM)
_PLAIN = re.compile(r"[A-Za-z_/][\w./:-]*")
_HYDRA_WORDS = frozenset({"true", "false", "null", "none", "nan", "inf", "yes", "no", "on", "off"})

SignalQueue = queue.SimpleQueue[int]
"""Received signals; a handler may add one at any time."""


@dataclass(frozen=True)
class ProgramExit:
    """How a program ended."""

    code: int
    """As a shell reports it: 128 plus the number of the signal that ended it."""
    interrupted: bool

    @property
    def description(self) -> str:
        if self.code > 128:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(self.code - 128).name}"
        return f"ended with code {self.code}"


def run_trainer(
    plan: TrainingPlan,
    folder: Path,
    name: str,
    figures: Callable[[], Mapping[str, Any]] = dict,
    problem: Callable[[], AgentCoreRLError | None] = lambda: None,
) -> dict[str, Any]:
    """Run the trainer `name` to its end and return the summary, which is also written to the run's folder.

    `figures` returns further entries of the summary, and `problem` says why the program has to end early.
    Raises that problem, or `AgentCoreRLError` if the program fails.
    """
    for note in plan.notes:
        if note.startswith("warning: "):
            logger.warning("%s", note)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)  # of a run that this one resumes
    (folder / "command.sh").write_text(plan.text() + "\n")
    with _env_file(folder / ENV_FILE, plan.session_env):
        ending = launch(plan, has_to_end=lambda: problem() is not None)
    summary: dict[str, Any] = {"backend": plan.backend, "output": str(folder)}
    summary |= {"exit_code": ending.code, "interrupted": ending.interrupted, **figures()}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    found = problem()
    if found is not None:
        raise found
    if ending.code and not ending.interrupted:
        hint = f"its output above says why; {folder / 'command.sh'} starts it again"
        raise AgentCoreRLError(f"{name} {ending.description}", hint=hint)
    return summary


@contextlib.contextmanager
def _env_file(path: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """Keep the variables of sessions in a file that only this user may read, until the block ends."""
    path.unlink(missing_ok=True)  # of a run that was killed
    try:
        if variables:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(dict(variables), file)
        yield
    finally:
        path.unlink(missing_ok=True)


def launch(
    plan: TrainingPlan,
    *,
    stages: Sequence[tuple[int, float]] = STAGES,
    has_to_end: Callable[[], bool] = lambda: False,
) -> ProgramExit:
    """Carry out a plan. Ctrl-C and SIGTERM end the program's group, stage by stage; a repeated signal skips a stage.

    `has_to_end` is asked several times a second whether to end it as Ctrl-C does.
    """
    for path, content in plan.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content)
    with _queued_signals() as signals:
        try:
            process = subprocess.Popen(plan.command, env={**os.environ, **plan.environment}, start_new_session=True)
        except OSError as error:
            raise ConfigError(f"{plan.command[0]} can't be started: {error.strerror}") from error
        try:
            number = _wait_for_exit(process, signals, has_to_end)
            if number is None:
                code = process.returncode if process.returncode >= 0 else 128 - process.returncode
                return ProgramExit(code, interrupted=code in _BY_SIGNAL)
            name = signal.Signals(number).name
            logger.warning("%s: ending %s; press Ctrl-C again to skip the wait", name, plan.backend)
        finally:
            _end_group(process, signals, stages)
        return ProgramExit(128 + number, interrupted=True)


@contextlib.contextmanager
def _queued_signals() -> Iterator[SignalQueue]:
    """Queue the signals of this process instead of handling them; outside the main thread the queue stays empty."""
    signals: SignalQueue = queue.SimpleQueue()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    previous = {n: signal.signal(n, lambda number, _: signals.put(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait_for_exit(
    process: subprocess.Popen[bytes], signals: SignalQueue, has_to_end: Callable[[], bool]
) -> int | None:
    """Wait until the program exits (None), or a signal arrives or is due (its number)."""
    while process.poll() is None:
        if has_to_end():
            return signal.SIGINT
        with contextlib.suppress(queue.Empty):
            return signals.get(timeout=_POLL_SECONDS * 4)
    return None


def _end_group(process: subprocess.Popen[bytes], signals: SignalQueue, stages: Sequence[tuple[int, float]]) -> None:
    """End the program, if it still runs, and all of its group."""
    if process.returncode is not None:
        return
    for number, seconds in stages:
        _signal_group(process, number)
        deadline = time.monotonic() + seconds
        while process.poll() is None or _signal_group(process, 0):
            if time.monotonic() > deadline or not signals.empty():
                break
            time.sleep(_POLL_SECONDS)
        else:
            return
        with contextlib.suppress(queue.Empty):
            signals.get_nowait()
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal the program's group; False if the group is empty."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # macOS refuses to signal a group of zombies
        return False
    return True


# --- overrides of trainers that are configured with Hydra ------------------------------------------------------------


def override_key(override: str) -> str:
    """The key that an override sets.

    >>> override_key("++trainer.logger=x")
    'trainer.logger'
    """
    return override.partition("=")[0].lstrip("+~")


def write_option(key: str, value: Any) -> str:
    """A user's option as an override; a text is written unchanged, as on Hydra's own command line.

    >>> write_option("trainer.logger", "[a, b]"), write_option("trainer.logger", ["a b"])
    ('trainer.logger=[a, b]', "trainer.logger=['a b']")
    """
    return f"{key}={value if isinstance(value, str) else hydra_value(value)}"


def hydra_value(value: Any) -> str:
    """A value in Hydra's grammar.

    >>> hydra_value("runs/my run"), hydra_value([1, None, "it's"]), hydra_value("a/b.c"), hydra_value("true")
    ("'runs/my run'", "[1,null,'it\\\\'s']", 'a/b.c', "'true'")
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{hydra_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(hydra_value(one) for one in value) + "]"
    if not isinstance(value, str):
        raise ConfigError(f"{value!r} can't be an option", hint="give numbers, texts, lists and tables")
    if _PLAIN.fullmatch(value) and value.lower() not in _HYDRA_WORDS:
        return value
    # Hydra keeps backslashes, except before a quote.
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value) + "'"
