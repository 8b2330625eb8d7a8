"""The suite that every backend passes, with verl."""

from __future__ import annotations

from types import ModuleType

import pytest

from contract.test_backends import *  # noqa: F403
from support.backends import adapter


@pytest.fixture
def backend() -> ModuleType:
    return adapter("verl")
