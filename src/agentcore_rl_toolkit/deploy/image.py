"""An agent's image: what goes into it, and the container engine that builds and pushes it.

An image is tagged by what went into it, so that one that exists need not be built again. Docker and Podman are
programs that are started; where neither is at hand, `codebuild.py` builds on AWS.
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
from .aws.policies import PUSH
from .aws.state import FILE

ARM = "linux/arm64"
"""What AgentCore Runtime runs."""
ENGINES = ("docker", "podman")

IMAGE_ONLY = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
"""Lets a tag be the image itself, not a list with its provenance; a Docker without BuildKit doesn't mind it."""

_STDERR = 2
_LEFTOVER = re.compile(r"\..*_cache|__pycache__|.*\.egg-info")

Say = Callable[[str], object]


def context_files(folder: Path) -> list[Path]:
    """The files of an agent that its image is built from, in a fixed order."""
    files = (Path(path) for path in agent_files(str(folder)))
    return sorted(path for path in files if path.name != FILE and _is_source(path, folder))


def content_tag(folder: Path) -> str:
    """A tag that changes when a file does."""
    return f"rl-{_digest(folder, context_files(folder))[:16]}"


@dataclass(frozen=True)
class Engine:
    """Docker or Podman."""

    name: str

    def build_command(self, folder: Path, image: str, platform: str | None) -> list[str]:
        """The command that builds; `platform` None is this machine's own."""
        given = ["--tag", image, "--file", str(folder / "Dockerfile")]
        if platform is not None:
            given = ["--platform", platform, *given]
        return [self.name, "build", *given, str(folder)]

    def login_command(self, registry: str) -> list[str]:
        return [self.name, "login", "--username", "AWS", "--password-stdin", registry]

    def push_command(self, image: str) -> list[str]:
        return [self.name, "push", image]

    def build(self, folder: Path, image: str, platform: str | None) -> None:
        """Build, and check that it is for the platform that was asked for."""
        self._run(self.build_command(folder, image, platform), self._build_hint(platform))
        built = self.platform(image)
        if platform is not None and built != platform:
            raise ConfigError(f"{image} was built for {built}, not for {platform}", hint=self._build_hint(platform))

    def push(self, image: str, password: str) -> None:
        """Log in to the image's registry, and push."""
        registry = image.partition("/")[0]
        reached = f"read what it says above: can {registry} be reached from here?"
        self._run(self.login_command(registry), reached, password)
        hint = f"read what it says above; pushing takes {', '.join(PUSH)} on {image.rpartition(':')[0]}"
        self._run(self.push_command(image), hint)

    def platform(self, image: str) -> str | None:
        """What a local image is for, such as linux/arm64; None if there is none."""
        command = [self.name, "image", "inspect", "--format", "{{.Os}}/{{.Architecture}}", image]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.stdout.strip() if found.returncode == 0 else None

    def _run(self, command: Sequence[str], hint: str, stdin: str = "") -> None:
        env = os.environ | IMAGE_ONLY
        try:  # what the program says goes to stderr: stdout is for data
            done = subprocess.run(command, input=stdin, text=True, stdout=_STDERR, env=env, check=False)
        except OSError as error:
            raise ConfigError(f"{self.name} can't be started: {error.strerror}", hint=hint) from None
        if done.returncode:
            raise ConfigError(f"`{' '.join(command[:3])} …` failed with {done.returncode}", hint=hint)

    def _build_hint(self, platform: str | None) -> str:
        if platform is None:
            return "read what it says above"
        return (
            f"read what it says above; if it can't run {platform} here, install QEMU's binfmt handlers "
            f"({self.name} run --privileged --rm tonistiigi/binfmt --install arm64), or build with --engine codebuild"
        )


def choose_engine(wanted: str = "auto") -> Engine | None:
    """The engine that was asked for, or the first that answers; None for CodeBuild."""
    if wanted == "codebuild":
        return None
    for name in ENGINES if wanted == "auto" else (wanted,):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0:
            return Engine(name)
    if wanted != "auto":
        hint = f"install it and start its service, or use --engine codebuild, which needs no {wanted}"
        raise ConfigError(f"{wanted} does not answer", hint=hint)
    return None


def add_toolkit(folder: Path, say: Say, *, dry_run: bool = False) -> None:
    """Put the toolkit's wheel beside the agent, if it is installed from a folder rather than from PyPI."""
    source = _source_folder()
    if source is None:
        return
    wheels, mark = folder / "wheels", folder / "wheels" / "toolkit.sha256"
    digest = _digest(source, [path for path in sorted(source.glob("src/**/*")) if _is_source(path, source)])
    if mark.is_file() and mark.read_text() == digest:
        return
    say(f"the toolkit is installed from {source}: its wheel goes into {wheels}")
    if dry_run:
        say("the image's tag below is that of the folder as it is, without this wheel")
        return
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "toolkit"
        shutil.copytree(
            source / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", ".*_cache")
        )
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(source / name, copy / name)
        built = Path(place) / "wheels"
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(built), str(copy)]
        env = os.environ | {"SOURCE_DATE_EPOCH": "315532800", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}  # the same bytes
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(f"the toolkit's wheel can't be built: {done.stderr.strip()[-500:]}")
        shutil.rmtree(wheels, ignore_errors=True)
        shutil.copytree(built, wheels)
    mark.write_text(digest)


def _is_source(path: Path, folder: Path) -> bool:
    """Not what interpreters, installers and linters leave behind: an image would be built anew for it."""
    return not any(_LEFTOVER.fullmatch(part) for part in path.relative_to(folder).parts)


def _digest(folder: Path, files: Sequence[Path]) -> str:
    """What files are called, may do and contain, in short."""
    digest = hashlib.sha256()
    for path in files:
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0{os.access(path, os.X_OK)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _source_folder() -> Path | None:
    """Where the toolkit was installed from, if that is a folder."""
    try:
        text = importlib.metadata.distribution("agentcore-rl-toolkit").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    found = json.loads(text) if text else {}
    url = urlsplit(found.get("url", ""))
    path = Path(unquote(url.path))
    return path if "dir_info" in found and url.scheme == "file" and (path / "pyproject.toml").is_file() else None
