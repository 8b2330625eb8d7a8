"""Installs each harness in its own place, and the vocabulary that the policy speaks.

    python tests/real_harnesses/install.py .venv/harnesses [names]

Versions are pinned in the harnesses' files; what is there already is left as it is.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[0] = str(TESTS)

from real_harnesses.harness import Harness  # noqa: E402

_PIP = ["-m", "pip", "--disable-pip-version-check", "-qq"]


def install(harness: Harness, folder: Path) -> None:
    wanted = "\n".join(harness.packages)
    done = folder / ".installed"
    if done.exists() and done.read_text() == wanted:
        return
    print(f"installing {' '.join(harness.packages)} into {folder} …", flush=True)  # noqa: T201
    folder.mkdir(parents=True, exist_ok=True)
    if harness.npm:
        flags = ["--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(["npm", "install", *flags, "--prefix", str(folder), *harness.packages], check=True)
    else:
        subprocess.run([python(harness.python), "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "python"), *_PIP, "install", *harness.packages], check=True)
    done.write_text(wanted)


def python(least: tuple[int, int]) -> str:
    """An interpreter that is new enough: this one, one on the path, or one of pyenv's."""
    if sys.version_info >= least:
        return sys.executable
    for minor in range(least[1], least[1] + 3):
        name = f"python{least[0]}.{minor}"
        pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{least[0]}.{minor}.*/bin/{name}"))
        for known in [shutil.which(name), *map(str, pyenv)]:
            if known and subprocess.run([known, "-c", ""], capture_output=True).returncode == 0:
                return known
    raise SystemExit(
        f"Python {least[0]}.{least[1]} or newer is needed, and not found: install it, or put it on the path"
    )


def vocabulary(folder: Path) -> None:
    from real_harnesses.policy import VOCABULARY, make_tokenizer

    saved = folder / "tokenizer.json"
    if saved.exists():
        return
    subprocess.run([sys.executable, *_PIP, "download", "--no-deps", "-d", str(folder), VOCABULARY], check=True)
    (wheel,) = folder.glob("dashscope-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extract("dashscope/resources/qwen.tiktoken", folder)
    make_tokenizer(folder / "dashscope" / "resources" / "qwen.tiktoken", saved)


def main(folder: Path, names: list[str]) -> None:
    vocabulary_folder = folder.absolute()
    vocabulary_folder.mkdir(exist_ok=True)
    for path in sorted(Path(__file__).with_name("harnesses").glob("*.py")):
        if not names or path.stem in names:
            harness: Harness = importlib.import_module(f"real_harnesses.harnesses.{path.stem}").HARNESSES[0]
            install(harness, folder.absolute() / harness.name)
    vocabulary(vocabulary_folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
