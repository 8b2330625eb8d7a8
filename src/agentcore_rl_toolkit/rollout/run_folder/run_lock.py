"""One training run at a time in a folder: a lock on its file `.lock`, held until the run has ended or its process has.

A run takes it before it removes what an earlier one left: until its first checkpoint, a run looks like a dead one.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path

from ...errors import ConfigError
from .run_text import read_object

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked_run(folder: Path) -> Iterator[None]:
    """Keep other training runs out of a folder, which need not exist. One with other rollouts is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, end it, or choose another output"
            raise ConfigError(f"another run is writing to {folder}", hint=hint) from None
        except OSError as error:
            logger.warning("%s can't be locked, so keep other runs out of it: %s", folder, error)
        if (read_object(folder / "run.json") or {}).get("kind") == "rollout":
            hint = "choose another output; training would remove them"
            raise ConfigError(f"{folder} has rollouts that were made without training", hint=hint)
        yield
