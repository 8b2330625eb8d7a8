"""Where a page of the documentation is run: a copy of what a clone has, and what the page takes for granted.

A page that talks to a model or to AWS finds one at work on loopback. What it needs beyond its own blocks is in `NEEDS`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

from agentcore_rl_toolkit.rollout import RolloutWriter
from conftest import AwsServers
from support.agent import run_agent
from support.container import PUBLISH, data_plane, write_engine
from support.docs import ROOT
from support.fake_agentcore_control import FakeAgentCoreControl
from support.process import clean_env, free_port, without_torch
from support.rollouts import make_rollout
from support.scripted_model import ScriptedModel

BIN = Path(sys.executable).parent
SECONDS = 500
PORTS = ("8000", "8080", "8800", "8801", "9000")
"""Those of the pages. A test takes free ones."""


@dataclass
class Stage:
    """A folder to run a page in."""

    folder: Path
    env: dict[str, str]
    names: dict[str, str]
    aws: Callable[[], AwsServers]
    has_torch: bool = False

    def run(self, page: Path) -> subprocess.CompletedProcess[str]:
        state = self.folder / ".state"
        state.mkdir()
        path = self.env["PYTHONPATH"] + ("" if self.has_torch else f":{without_torch()['PYTHONPATH']}")
        env = self.env | {"PYTHONPATH": path, "DOCS_NAMES": json.dumps(self.names), "DOCS_STATE": str(state)}
        command = [sys.executable, "-m", "support.docs_run", str(page)]
        with subprocess.Popen(command, env=env, cwd=self.folder, stdout=PIPE, stderr=PIPE, text=True) as process:
            try:
                said = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()  # it ends what the page has started
                said = process.communicate()
            return subprocess.CompletedProcess(command, process.returncode, *said)


def stage(page: str, folder: Path, aws: Callable[[], AwsServers]) -> AbstractContextManager[Stage]:
    """The stage of a page, with all that it needs."""
    return _stage(NEEDS.get(page, ()), folder, aws)


@contextmanager
def _stage(needs: tuple[Need, ...], folder: Path, aws: Callable[[], AwsServers]) -> Iterator[Stage]:
    skip = shutil.ignore_patterns(
        "__pycache__", ".mypy_cache", "runs", "data", "*.egg-info", "build", ".agentcore-rl.json"
    )
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=skip)
    for name in ("src", "scripts", "tests", "docs", "Makefile", "pyproject.toml", ".env.example"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("home", "tmp", "bin"):
        (folder / name).mkdir()
    (folder / "bin" / "pip").write_text("#!/bin/sh\n")  # all is installed; `docs_commands.py` has looked at the names
    (folder / "bin" / "pip").chmod(0o755)
    names = {port: str(free_port()) for port in PORTS} | {"/tmp/": f"{folder}/tmp/"}
    env = clean_env(
        PATH=f"{folder}/bin:{BIN}:{os.environ['PATH']}",
        HOME=str(folder / "home"),
        PYTHONPATH=str(ROOT / "tests"),
        AWS_EC2_METADATA_DISABLED="true",
        HF_HUB_OFFLINE="1",
        NO_PROXY="127.0.0.1,localhost",
        no_proxy="127.0.0.1,localhost",
        OMP_NUM_THREADS="1",
        RAY_ADDRESS="local",
        RAY_USAGE_STATS_ENABLED="0",
    )
    made = Stage(folder, env, names, aws)
    with ExitStack() as stack:
        for need in needs:
            stack.enter_context(need(made))
        yield made


Need = Callable[[Stage], AbstractContextManager[None]]


@contextmanager
def port_8080(made: Stage) -> Iterator[None]:
    """Apps, which always listen on 8080, do so on the port that stands for it here."""
    (made.folder / "site").mkdir()
    (made.folder / "site" / "sitecustomize.py").write_text(PUBLISH)
    made.env |= {"PYTHONPATH": f"{made.env['PYTHONPATH']}:{made.folder}/site", "PUBLISHED": made.names["8080"]}
    yield


@contextmanager
def model(made: Stage) -> Iterator[None]:
    """An OpenAI-compatible model on port 8000, which knows one answer."""
    with ScriptedModel(lambda body: {"content": "The answer is 42."}).serving() as running:
        made.names["8000"] = running.base_url.removesuffix("/v1").rpartition(":")[2]
        yield


@contextmanager
def rows(made: Stage) -> Iterator[None]:
    """The data that a page calls `train.jsonl`, `held-out.jsonl` or `test.jsonl`."""
    for split, names in {"train": ["train"], "held-out": ["held-out", "test"]}.items():
        command = [sys.executable, str(ROOT / "examples/strands_math_agent/problems.py"), split, "64"]
        made_rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for name in names:
            (made.folder / f"{name}.jsonl").write_text(made_rows)
    yield


@contextmanager
def rollouts(made: Stage) -> Iterator[None]:
    """What a training run has left in `runs/math`."""
    place = made.folder / "runs" / "math" / "rollouts"
    place.mkdir(parents=True)
    with RolloutWriter(place / "step-000000.jsonl") as writer:
        writer.write(make_rollout())
    yield


@contextmanager
def agent(made: Stage) -> Iterator[None]:
    """The agent that a page calls `rl_app.py`, and its `rows.jsonl`."""
    shutil.copy(ROOT / "examples/echo_agent/rl_app.py", made.folder)
    lines = [json.dumps({"prompt": word, "answer": word}) for word in ("a", "b")]
    (made.folder / "rows.jsonl").write_text("\n".join(lines))
    yield


@contextmanager
def math_agent(made: Stage) -> Iterator[None]:
    """The agent that a page calls `rl_app.py`, and that calls its model."""
    for name in ("rl_app", "calculator", "question", "reward"):
        shutil.copy(ROOT / f"examples/strands_math_agent/{name}.py", made.folder)
    yield


@contextmanager
def torch(made: Stage) -> Iterator[None]:
    """The page installs PyTorch. Without it every command that loads a tokenizer starts sooner."""
    made.has_torch = True
    yield


@contextmanager
def docker(made: Stage) -> Iterator[None]:
    """A container engine that only writes down what it was told."""
    write_engine(made.folder / "bin", "docker")
    yield


@contextmanager
def aws(made: Stage) -> Iterator[None]:
    """An AWS account: moto, a scripted control plane, and a container that is the echo agent."""
    servers = made.aws()
    services = ("S3", "ECR", "IAM", "STS", "SQS", "CODEBUILD")
    made.env |= servers.env | {f"AWS_ENDPOINT_URL_{service}": servers.sqs_url for service in services}
    echo = ROOT / "examples/echo_agent/rl_app.py"
    environment = {name: value for name, value in made.env.items() if name.startswith("AWS_")}
    with (
        run_agent(echo, made.folder, **environment) as container,
        FakeAgentCoreControl().serving() as control,
        data_plane(container) as (url, _),
    ):
        made.env |= control.env | {"AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": url}
        yield


NEEDS: dict[str, tuple[Need, ...]] = {
    "docs/guides/client.md": (agent,),
    "docs/guides/deploy.md": (aws, docker),
    "docs/guides/prepare-your-agent.md": (port_8080,),
    "docs/guides/gateway.md": (torch,),
    "docs/guides/production.md": (torch,),
    "docs/guides/tinker.md": (math_agent, rows),
    "docs/guides/train.md": (torch, rollouts),
    "docs/guides/verl.md": (rows,),
    "docs/quick-start.md": (aws, docker, model),
    "docs/reference/python.md": (torch,),
    "examples/echo_agent/README.md": (port_8080,),
    "examples/strands_appworld_agent/README.md": (docker,),
    "examples/strands_math_agent/README.md": (port_8080,),
    "examples/strands_officebench_agent/README.md": (docker,),
}
"""What is there before the first block of a page; other pages need nothing."""
