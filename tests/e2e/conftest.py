"""What end-to-end tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C reaches the test and what it starts, also where a shell has turned it off for the suite."""
    known = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, known)
