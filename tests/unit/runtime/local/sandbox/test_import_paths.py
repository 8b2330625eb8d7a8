"""What sessions see of the folders that Python imports from."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from agentcore_rl_toolkit.runtime.local.sandbox.import_paths import trusted_folders
from support.process import clean_env

SHOWN = """
import json, sys
sys.path += sys.argv[2:]
from agentcore_rl_toolkit.runtime.local.sandbox.import_paths import trusted_folders, visible_paths
print(json.dumps([*visible_paths(sys.argv[1:2]), trusted_folders(), sys.prefix]))
"""


def shown(tmp_path: Path, *projects: Path, python: str = sys.executable) -> tuple[list[str], list[str], list[str], str]:
    command = [python, "-c", SHOWN, *map(str, projects)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_env(), cwd=tmp_path)
    paths, hidden, trusted, prefix = json.loads(done.stdout)
    return paths, hidden, trusted, prefix


def make(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("")
    return folder


def test_of_a_project_only_what_can_be_imported_is_shown(tmp_path: Path) -> None:
    """An editable install without a `src` folder has the whole project on `sys.path`."""
    project = make(
        tmp_path / "project",
        "package/__init__.py", "package/data/prompt.txt", "package/.env", "package/env/pyvenv.cfg",
        "namespace/part/module.py", "single.py", "native.so", "project.egg-info/PKG-INFO",
        ".env", ".git/config", "runs/1/x.json", "docs/index.md", "venv/pyvenv.cfg", "venv/lib/x.py", "notes.txt",
        "not-a-name/x.py",
    )  # fmt: skip
    python_path = make(tmp_path / "lib", "other.py", "secrets.txt")
    paths, hidden, trusted, prefix = shown(tmp_path, python_path, project)
    mine = {str(Path(path).relative_to(tmp_path)) for path in paths if path.startswith(str(tmp_path))}
    names = ("package", "namespace", "single.py", "native.so", "project.egg-info")
    assert mine == {"lib/other.py", *(f"project/{name}" for name in names)}
    assert [str(Path(path).relative_to(tmp_path)) for path in hidden if path.startswith(str(tmp_path))] == [
        "project/package/.env",
        "project/package/env",
    ]
    assert prefix in paths
    assert trusted != []
    assert not any(path.startswith(str(tmp_path)) for path in trusted)


def test_nothing_is_shown_twice_and_never_everything(tmp_path: Path) -> None:
    paths, _, _, _ = shown(tmp_path, Path("/"), tmp_path)
    assert "/" not in paths
    for path in paths:
        assert not any(path != other and path.startswith(other.rstrip("/") + "/") for other in paths), path


@pytest.mark.parametrize("name", [".venv", "runs/env"])
def test_an_environment_below_the_python_path_stays_visible(tmp_path: Path, name: str) -> None:
    """`PYTHONPATH=~/work`, with the environment in one of the projects there."""
    project = make(tmp_path / "work/project", "module.py", ".env", "runs/1/x.json")
    other = make(tmp_path / "work/other", "module.py")
    venv.create(project / name, symlinks=True)
    (packages,) = (project / name).glob("lib/*/site-packages")
    (packages / "beside.pth").write_text("".join(f"import site; site.addsitedir({p!r})\n" for p in trusted_folders()))
    python = str(project / name / "bin/python")
    paths, hidden, _, prefix = shown(tmp_path, project.parent, python=python)
    assert prefix == str(project / name)
    assert not any(f"{prefix}/".startswith(f"{path}/") for path in hidden), "nothing covers the environment"
    assert any(f"{prefix}/".startswith(f"{path}/") for path in paths), "and sessions see it"
    assert str(other) in paths
    assert (str(project) in paths) == (name == ".venv"), "a project whose results hold the environment is not shown"
    secret, result = str(project / ".env"), str(project / "runs/1/x.json")
    for path in (secret, result):
        is_shown = any(path.startswith(f"{folder}/") for folder in paths)
        assert not is_shown or any(f"{path}/".startswith(f"{cover}/") for cover in hidden)
