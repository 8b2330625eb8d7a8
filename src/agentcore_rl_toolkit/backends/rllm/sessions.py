"""How the sessions of a run went, from the episodes that rLLM logs: rLLM itself ends well even if all of them failed.

Its episode logger writes a file for each, with the adapter's error if there was one. Asynchronous training logs none.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

from ...errors import AgentCoreRLError

logger = logging.getLogger(__name__)

LOGGED = "rllm.episode_logging.log_episodes"
PLACE = "rllm.episode_logging.episode_log_dir"
FOLDER = "episodes"
"""What rLLM makes in that place."""
_LONGEST = 300
_VARYING = re.compile(r"[0-9a-f]{8}[0-9a-f-]*|\d+(\.\d+)?")


class Sessions:
    """How many there were, and why those that failed did."""

    def __init__(self) -> None:
        self.run = 0
        self._kinds: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    @property
    def failed(self) -> int:
        return self._kinds.total()

    def read(self, folder: Path) -> dict[str, Any]:
        """Count what was logged since the run began, which is when its command was written; gives the figures."""
        began = (folder / "command.sh").stat().st_mtime_ns
        for path in (folder / FOLDER).glob("*/episode_*.json"):
            if path.stat().st_mtime_ns >= began:
                self.run += 1
                self._count(path)
        return {"sessions": self.run, "failed_sessions": self.failed}

    def check(self, folder: Path) -> None:
        """Refuse to call it a success if every session failed."""
        if not self.run:
            logger.warning("rLLM logged no episodes in %s, so how its sessions went is not known", folder / FOLDER)
        elif self.failed == self.run:
            kind, times = self._kinds.most_common(1)[0]
            told = f"all {self.run} sessions failed, {times} of them like this: {self._examples[kind]}"
            hint = f"nothing was trained on; every session is in {folder / FOLDER}"
            raise AgentCoreRLError(told, hint=hint)

    def _count(self, path: Path) -> None:
        try:
            episode = json.loads(path.read_text())
        except ValueError:  # rLLM was ended while it wrote it
            return
        error = (episode.get("metadata") or {}).get("error")
        if error is None:
            return
        said = " ".join(str(error.get("error_message")).split())
        kind = _VARYING.sub("", said)  # ids and times differ where the error is the same
        self._kinds[kind] += 1
        self._examples.setdefault(kind, said if len(said) <= _LONGEST else f"{said[:_LONGEST]} …")
