"""The package as users install it: a wheel made from the clone, in an index that also has a package of that name.

It is what docs/quick-start.md tells them to do.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from agentcore_rl_toolkit.cli import main
from support.docs import ROOT, blocks
from support.process import clean_env

PEER = "agentcore_rl_toolkit-0.1.3"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` writes, beside a wheel of the package that has the name on PyPI."""
    folder = tmp_path_factory.mktemp("index")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, env=clean_env(PIP_DISABLE_PIP_VERSION_CHECK="1"))
    with zipfile.ZipFile(folder / f"{PEER}-py3-none-any.whl", "w") as peer:
        peer.writestr("agentcore_rl_toolkit/__init__.py", "PEER = True\n")
        peer.writestr(
            f"{PEER}.dist-info/METADATA", "Metadata-Version: 2.1\nName: agentcore-rl-toolkit\nVersion: 0.1.3\n"
        )
        peer.writestr(f"{PEER}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        peer.writestr(f"{PEER}.dist-info/RECORD", "")
    return folder


def test_the_index_of_the_clone_gives_ours_with_all_its_files(index: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", system_site_packages=True, with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    env = clean_env(PIP_FIND_LINKS=str(index), PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--ignore-installed",
        "agentcore-rl-toolkit[cli]",
    ]
    subprocess.run(install, check=True, env=env)
    site = next((tmp_path / "env").glob("lib/python*/site-packages")) / "agentcore_rl_toolkit"
    assert not (site / "PEER").exists()
    sources = {
        path.relative_to(ROOT / "src/agentcore_rl_toolkit") for path in (ROOT / "src/agentcore_rl_toolkit").rglob("*")
    }
    wanted = {
        path
        for path in sources
        if (ROOT / "src/agentcore_rl_toolkit" / path).is_file() and "__pycache__" not in path.parts
    }
    missing = {str(path) for path in wanted if not (site / path).is_file()}
    assert not missing
    version = [str(tmp_path / "env" / "bin" / "agentcore-rl"), "--version"]
    done = subprocess.run(version, capture_output=True, text=True, check=True, env=clean_env(PYTHONPATH=_packages()))
    assert done.stdout.startswith("agentcore-rl 0.3")


def test_the_starter_toolkits_image_gets_ours(index: Path, tmp_path: Path) -> None:
    """Its Dockerfile copies the folder and runs `uv pip install .` there."""
    uv = pytest.importorskip("uv").find_uv_bin()
    assert main(["init", str(tmp_path / "my_agent"), "--framework", "openai"]) == 0
    (tmp_path / "dist").mkdir()
    for wheel in index.glob("*-0.3*.whl"):
        shutil.copy(wheel, tmp_path / "dist")
    (block,) = (b for b in blocks(ROOT / "docs/guides/deploy.md") if "find-links" in b.code)
    subprocess.run(["bash", "-ec", block.code], cwd=tmp_path, check=True)
    install = [uv, "pip", "install", "--dry-run", "--no-deps", "--offline", "--target", str(tmp_path / "site")]
    env = clean_env(UV_PYTHON=sys.executable, UV_CACHE_DIR=str(tmp_path / "cache"))
    done = subprocess.run(
        [*install, "agentcore-rl-toolkit>=0.3"], cwd=tmp_path / "my_agent", capture_output=True, text=True, env=env
    )
    assert "+ agentcore-rl-toolkit==0.3" in done.stderr, done.stderr


def _packages() -> str:
    """Where this suite's packages are; the new environment has none of its own."""
    return next(path for path in sys.path if path.endswith("site-packages"))
