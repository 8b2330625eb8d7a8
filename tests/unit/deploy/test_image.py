"""The tag of an image, and the Dockerfiles of this repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentcore_rl_toolkit.deploy.doctor.check_files import check_dockerfile
from agentcore_rl_toolkit.deploy.image import content_tag
from agentcore_rl_toolkit.deploy.scaffold.new_agent import TEMPLATES

ROOT = Path(__file__).parents[3]


def test_the_tag_follows_the_content(folder: Path) -> None:
    (folder / "rl_app.py").write_text("a")
    first = content_tag(folder)
    (folder / ".env").write_text("secret")
    (folder / ".agentcore-rl.json").write_text("{}")
    (folder / "runs").mkdir()
    (folder / "runs" / "x").touch()
    for leftover in ("__pycache__", ".mypy_cache", "my_agent.egg-info"):
        (folder / leftover).mkdir()
        (folder / leftover / "x.json").touch()
    os.utime(folder / "rl_app.py", (0, 0))
    assert content_tag(folder) == first
    (folder / "rl_app.py").rename(folder / "app.py")
    second = content_tag(folder)
    (folder / "app.py").write_text("b")
    third = content_tag(folder)
    (folder / "app.py").chmod(0o755)
    assert len({first, second, third, content_tag(folder)}) == 4


@pytest.mark.parametrize("recipe", [TEMPLATES / "Dockerfile", *sorted(ROOT.glob("examples/*/Dockerfile"))], ids=str)
def test_every_dockerfile_of_ours_builds_from_a_checkout_and_listens(recipe: Path) -> None:
    text = recipe.read_text()
    assert check_dockerfile(recipe.parent).state == "ok"
    assert "FROM public.ecr.aws/docker/library/python:3" in text  # Podman takes no short names
    assert "COPY pyproject.toml wheels* ./wheels/\nRUN pip install --find-links wheels ./wheels\n" in text
    assert "py-modules = []" in next(recipe.parent.glob("pyproject.t*")).read_text()  # the wheel step copies no module
    ignored = next(path for path in recipe.parent.iterdir() if path.name.strip(".").startswith("dockerignore"))
    assert {".env", ".agentcore-rl.json", "**/__pycache__"} <= set(ignored.read_text().split())
