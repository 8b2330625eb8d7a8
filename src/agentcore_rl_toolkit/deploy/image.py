"""An agent's image: its files, its tag, and the container engine that builds and pushes it.

The tag is a hash of the files, so an image that exists is not built again. Docker or Podman builds here; where neither
answers, `aws/codebuild.py` builds on AWS.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError
from ..runtime.hosting.agent_files import agent_files
from .aws.policies import PUSH_ACTIONS
from .aws.state import STATE_FILE

ARM = "linux/arm64"
"""The platform of AgentCore Runtime."""
ENGINES = ("docker", "podman")

_NO_ATTESTATIONS = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
"""Makes a tag name the image itself, not a list of the image and its provenance."""
_STDERR = 2
_LEFTOVER = re.compile(r"\..*_cache|__pycache__|.*\.egg-info")


def context_files(folder: Path) -> list[Path]:
    """The files that an agent's image is built from, sorted."""
    files = (Path(path) for path in agent_files(str(folder)))
    return sorted(path for path in files if path.name != STATE_FILE and _is_source(path, folder))


def content_tag(folder: Path) -> str:
    """An image tag that changes when a file does."""
    return f"rl-{_digest(folder, context_files(folder))[:16]}"


@dataclass(frozen=True)
class ContainerEngine:
    """Docker or Podman."""

    name: str

    def commands(self, folder: Path, image: str, platform: str | None = ARM) -> list[list[str]]:
        """The commands that build the image, log in to its registry and push it; without a platform, for this one."""
        target = ["--platform", platform] if platform else []
        registry = image.partition("/")[0]
        return [
            [self.name, "build", *target, "--tag", image, "--file", str(folder / "Dockerfile"), str(folder)],
            [self.name, "login", "--username", "AWS", "--password-stdin", registry],
            [self.name, "push", image],
        ]

    def build(self, folder: Path, image: str, platform: str | None) -> None:
        """Build the image, and check that it is for the platform."""
        hint = "read the output above"
        if platform is not None:
            hint += (
                f"; if {platform} can't run here, install QEMU's binfmt handlers ({self.name} run --privileged --rm "
                "tonistiigi/binfmt --install arm64), or build with --builder codebuild"
            )
        self._run(self.commands(folder, image, platform)[0], hint)
        built = self.platform(image)
        if platform is not None and built != platform:
            raise ConfigError(f"{image} was built for {built}, not for {platform}", hint=hint)

    def push(self, image: str, password: str) -> None:
        """Log in to the image's registry, and push."""
        _, login, push = self.commands(Path(), image)
        self._run(login, f"read the output above; check that {login[-1]} can be reached from here", password)
        repository = image.rpartition(":")[0]
        self._run(push, f"read the output above; pushing needs {', '.join(PUSH_ACTIONS)} on {repository}")

    def platform(self, image: str) -> str | None:
        """The platform of a local image, such as linux/arm64; None if the image or the engine is missing."""
        command = [self.name, "image", "inspect", "--format", "{{.Os}}/{{.Architecture}}", image]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return None
        return found.stdout.strip() if found.returncode == 0 else None

    def _run(self, command: Sequence[str], hint: str, stdin: str = "") -> None:
        env = os.environ | _NO_ATTESTATIONS
        try:  # the engine's output goes to stderr: stdout is for data
            done = subprocess.run(command, input=stdin, text=True, stdout=_STDERR, env=env, check=False)
        except OSError as error:
            raise ConfigError(f"{self.name} can't be started: {error.strerror}", hint=hint) from None
        if done.returncode:
            raise ConfigError(f"`{' '.join(command[:3])} …` failed with {done.returncode}", hint=hint)


def choose_engine(wanted: str = "auto") -> ContainerEngine | None:
    """The wanted engine, or with `auto` the first that answers; None means CodeBuild."""
    if wanted == "codebuild":
        return None
    for name in ENGINES if wanted == "auto" else (wanted,):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0:
            return ContainerEngine(name)
    if wanted != "auto":
        hint = f"install {wanted} and start its service, or use --builder codebuild"
        raise ConfigError(f"{wanted} does not answer", hint=hint)
    return None


def add_toolkit(folder: Path, say: Callable[[str], object], *, dry_run: bool = False) -> None:
    """Put the toolkit's wheel beside the agent if the toolkit is installed from a folder instead of from PyPI."""
    source = _source_folder()
    if source is None:
        return
    wheels, mark = folder / "wheels", folder / "wheels" / "toolkit.sha256"
    digest = _digest(source, [path for path in sorted(source.glob("src/**/*")) if _is_source(path, source)])
    if mark.is_file() and mark.read_text() == digest:
        return
    say(f"the toolkit is installed from {source}: its wheel goes into {wheels}")
    if dry_run:
        say("the image's tag below is computed without this wheel")
        return
    with tempfile.TemporaryDirectory() as place:
        copy, built = Path(place) / "toolkit", Path(place) / "wheels"  # pip would litter the source with build/
        leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")
        shutil.copytree(source / "src", copy / "src", ignore=leftovers)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(source / name, copy / name)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(built), str(copy)]
        env = os.environ | {"SOURCE_DATE_EPOCH": "315532800", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}  # the same bytes
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"pip could not build the toolkit's wheel: {done.stderr.strip()[-500:]}")
        shutil.rmtree(wheels, ignore_errors=True)
        shutil.copytree(built, wheels)
    mark.write_text(digest)


def _is_source(path: Path, folder: Path) -> bool:
    """Whether a file belongs to the image; interpreters, installers and linters leave others behind."""
    return not any(_LEFTOVER.fullmatch(part) for part in path.relative_to(folder).parts)


def _digest(folder: Path, files: Sequence[Path]) -> str:
    """A hash of the files' names, modes and contents."""
    digest = hashlib.sha256()
    for path in files:
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0{os.access(path, os.X_OK)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _source_folder() -> Path | None:
    """The folder that the toolkit was installed from, if it was."""
    try:
        text = importlib.metadata.distribution("agentcore-rl-toolkit").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    found = json.loads(text) if text else {}
    url = urlsplit(found.get("url", ""))
    path = Path(unquote(url.path))
    return path if "dir_info" in found and url.scheme == "file" and (path / "pyproject.toml").is_file() else None
