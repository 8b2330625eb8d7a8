"""Failures that have a setting to turn."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("trl")

import torch

from agentcore_rl_toolkit.backends.trl.training import _with_hints
from agentcore_rl_toolkit.errors import AgentCoreRLError


def test_out_of_memory_names_the_setting_to_lower() -> None:
    with pytest.raises(AgentCoreRLError, match=r"out of memory.*\nhint: lower batch_size"), _with_hints():
        torch.empty(1 << 60)
    with pytest.raises(AgentCoreRLError, match="out of memory: CUDA"), _with_hints():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")


def test_a_full_disk_is_said_to_be_full() -> None:
    with pytest.raises(AgentCoreRLError, match=r"the disk is full.*\nhint: make room"), _with_hints():
        Path("/dev/full").write_text("x")


def test_other_failures_stay_as_they_are() -> None:
    for error in (RuntimeError("else"), FileNotFoundError(2, "else"), ValueError("else")):
        with pytest.raises(type(error), match="else"), _with_hints():
            raise error
