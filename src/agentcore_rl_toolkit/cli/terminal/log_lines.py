"""Log lines on stderr. Their messages may hold what an agent printed or raised, so a terminal gets them escaped."""

from __future__ import annotations

import logging
import sys

from ...common.text_table import escape


class EscapedLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escape(super().format(record))


def log_to_stderr() -> None:
    """Show what the package logs, for verbs that serve."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(EscapedLines("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def escape_logs() -> None:
    """Escape the warnings that Python shows where nobody configures logging."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapedLines())
