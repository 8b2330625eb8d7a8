from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An agent's folder with a Dockerfile, and an environment without settings for AWS."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCOUNT", "ECR_REPO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My-Agent").mkdir()
    (tmp_path / "My-Agent" / "Dockerfile").touch()
    return tmp_path / "My-Agent"
