"""One training run at a time in a folder: a lock on its file `.lock`, held until the run has ended or its process has.

A run takes it before it removes what an earlier one left: until its first checkpoint, a run looks like a dead one.
Whoever writes rollouts also holds a lock on its index, so locks say whether a run still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ...errors import ConfigError
from .run_text import read_object

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked_run(folder: Path) -> Iterator[None]:
    """Keep other training runs out of a folder, which need not exist. One with other rollouts is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try:
            take_lock(file)
        except BlockingIOError:
            hint = "wait for it, end it, or choose another output"
            raise ConfigError(f"another run is writing to {folder}", hint=hint) from None
        except OSError as error:
            logger.warning("%s can't be locked, so keep other runs out of it: %s", folder, error)
        if (read_object(folder / "run.json") or {}).get("kind") == "rollout":
            hint = "choose another output; training would remove them"
            raise ConfigError(f"{folder} has rollouts that were made without training", hint=hint)
        yield


def take_lock(file: IO[bytes]) -> None:
    """Lock a file for this process alone, or raise `BlockingIOError`. `is_written_to` may have it for a moment."""
    for attempt in range(5):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if attempt == 4:
                raise
        time.sleep(0.02)


def is_written_to(folder: Path) -> bool:
    """Whether a process on this machine holds a lock of a run. A copy of the folder has the files without the locks."""
    return any(_is_locked(path) for path in (folder / ".lock", *(folder / "index").glob("*.records")))


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(file)
    return False
