"""Which protections this machine can provide."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from agentcore_rl_toolkit.runtime.local.sandbox.namespaces import PROTECTIONS
from agentcore_rl_toolkit.runtime.local.sandbox.probe import probe


def test_the_kernel_is_probed_once_for_all_runtimes_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe()
    assert set(first) == set(PROTECTIONS)
    first["filesystem"] = "changed by a caller"

    def start(*args: Any, **more: Any) -> Any:
        raise AssertionError("another process was started")

    monkeypatch.setattr(subprocess, "run", start)
    assert probe()["filesystem"] != "changed by a caller"
