"""What an agent's Dockerfile leaves out that a container can't do without."""

from __future__ import annotations

from pathlib import Path

from .check import Check, failed, ok, skipped


def check_recipe(folder: Path) -> Check:
    """Whether the app will listen to the outside: `app.run()` does if something tells it that it is in a container."""
    recipe = folder / "Dockerfile"
    if not recipe.is_file():
        return skipped("container", "there is no Dockerfile; `agentcore-rl init` writes one")
    lines = recipe.read_text(encoding="utf-8").splitlines()
    said = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    if "DOCKER_CONTAINER" in said or "0.0.0.0" in said or any(map(_listens, folder.glob("*.py"))):
        return ok("container", "the app listens to the outside")
    fix = "write ENV DOCKER_CONTAINER=1 into the Dockerfile"
    return failed("container", "outside of Docker the app would listen on 127.0.0.1, where nobody can call it", fix)


def _listens(path: Path) -> bool:
    return "0.0.0.0" in path.read_text(encoding="utf-8", errors="replace")
