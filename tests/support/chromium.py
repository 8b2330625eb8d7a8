"""Chromium for tests of pages, or a line that says how to get it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
HOW = "needs Playwright and Chromium: pip install playwright, and apt-get install chromium (`make chromium` does both)"


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, or the test is skipped."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(HOW)
    sync_api = pytest.importorskip("playwright.sync_api", reason=HOW)
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
