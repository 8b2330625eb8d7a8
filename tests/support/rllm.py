"""rLLM for tests: a checkout that is on the path, or else a stand-in for it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parent / "rllm_stand_in"
IS_REAL = importlib.util.find_spec("rllm") is not None


@pytest.fixture
def rllm_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """rLLM can be imported; its data sets go to a folder of the test's."""
    monkeypatch.setenv("RLLM_HOME", str(tmp_path / "rllm"))
    if IS_REAL:
        from rllm.data.dataset import DatasetRegistry

        for name, path in (("_DATASET_DIR", ""), ("_REGISTRY_FILE", "registry.json")):  # read when it is imported
            monkeypatch.setattr(DatasetRegistry, name, str(tmp_path / "rllm" / "datasets" / path))
        yield
        return
    monkeypatch.syspath_prepend(str(STAND_IN))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("rllm", "hydra")]:
        del sys.modules[name]
