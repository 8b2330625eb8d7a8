"""What the runtime's HTTP servers log: their own failures, and nothing of requests that can't be read.

aiohttp logs a traceback for each of those. Sessions and other users could fill the runtime's log with them.
"""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

UNREADABLE = (web.RequestPayloadError, HttpProcessingError)
"""What aiohttp raises for a request, or a body, that it can't read."""


def http_logger() -> logging.Logger:
    """The logger that a server is given."""
    logger = logging.getLogger(f"{__package__}.http")
    if not logger.filters:
        logger.addFilter(lambda record: not record.exc_info or not isinstance(record.exc_info[1], UNREADABLE))
    return logger
