"""`scripts/build_docker_image_and_push_to_ecr.sh`, with programs that write down what they are told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.container import write_engine
from support.process import clean_env

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "build_docker_image_and_push_to_ecr.sh"
REGISTRY = "123456789012.dkr.ecr.us-west-2.amazonaws.com"
AWS = """\
#!{python} -S
import json, os, sys
here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "calls.jsonl"), "a") as file:
    file.write(json.dumps(["aws", *sys.argv[1:]]) + "\\n")
if "get-caller-identity" in sys.argv:
    print("123456789012")
elif "describe-repositories" in sys.argv:
    sys.exit(int(os.environ.get("NO_REPOSITORY", "0")))
elif "get-login-password" in sys.argv:
    print("a-password", end="")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("docker", "podman"):
        write_engine(tmp_path / "bin", name)
    (tmp_path / "bin" / "aws").write_text(AWS.format(python=sys.executable))
    (tmp_path / "bin" / "aws").chmod(0o755)
    (tmp_path / "agent" / ".bedrock_agentcore" / "x").mkdir(parents=True)
    (tmp_path / "agent" / "Dockerfile").touch()
    (tmp_path / "agent" / ".bedrock_agentcore" / "x" / "Dockerfile").touch()
    (tmp_path / ".env").write_text((ROOT / ".env.example").read_text())
    return tmp_path


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = clean_env(PATH=f"{folder / 'bin'}:/usr/bin:/bin") | env
    return subprocess.run(
        ["bash", str(SCRIPT), *args], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "bin" / "calls.jsonl").read_text().splitlines()]


def test_it_builds_for_arm64_logs_in_and_pushes(folder: Path) -> None:
    done = run(folder, "--dockerfile=agent/Dockerfile", "--tag=dev", "--context=.", NO_REPOSITORY="254")
    assert (done.returncode, done.stdout) == (0, f"{REGISTRY}/my-agent:dev\n"), done.stderr
    made, built, password, login, push = calls(folder)[2:]
    assert made == ["aws", "ecr", "create-repository", "--region", "us-west-2", "--repository-name", "my-agent"]
    assert built == [
        *["docker", "build", "--platform", "linux/arm64"],
        *["--tag", f"{REGISTRY}/my-agent:dev", "--file", "agent/Dockerfile", "."],
    ]
    assert password[:3] == ["aws", "ecr", "get-login-password"]
    assert login == ["docker", "login", "--username", "AWS", "--password-stdin", REGISTRY, "a-password"]
    assert push == ["docker", "push", f"{REGISTRY}/my-agent:dev"]


def test_the_context_the_engine_and_the_environment(folder: Path) -> None:
    nested = "agent/.bedrock_agentcore/x/Dockerfile"
    done = run(folder, f"--dockerfile={nested}", "--tag=dev", ENGINE="podman", ECR_REPO_NAME="other")
    assert (done.returncode, done.stdout) == (0, f"{REGISTRY}/other:dev\n"), done.stderr
    (built,) = (call for call in calls(folder) if "build" in call)
    assert (built[0], built[-2:]) == ("podman", [nested, "./agent"])
    assert not any("create-repository" in call for call in calls(folder))
    done = run(folder, "--dockerfile=agent/Dockerfile", "--tag=dev")
    assert calls(folder)[-4][-1] == "agent"


@pytest.mark.parametrize(
    ("args", "env", "says"),
    [
        (["--tag=dev"], {}, "--dockerfile is missing"),
        (["--dockerfile=nowhere", "--tag=dev"], {}, "there is no nowhere"),
        (["--dockerfile=agent/Dockerfile"], {}, "--tag is missing"),
        (["--dockerfile=agent/Dockerfile", "--tag=dev", "--push"], {}, "unknown argument --push"),
        (["--dockerfile=agent/Dockerfile", "--tag=dev"], {"AWS_ACCOUNT": "1"}, "is not an account"),
        (["--dockerfile=agent/Dockerfile", "--tag=dev"], {"AWS_ACCOUNT": "9" * 12}, "are for account 123456789012"),
        (["--dockerfile=agent/Dockerfile", "--tag=dev"], {"ENGINE": "nerdctl"}, "nerdctl is not installed"),
        (["--dockerfile=agent/Dockerfile", "--tag=dev"], {"BUILD_EXIT": "3"}, ""),
    ],
)
def test_what_it_refuses(folder: Path, args: list[str], env: dict[str, str], says: str) -> None:
    done = run(folder, *args, **env)
    assert (done.returncode != 0, done.stdout) == (True, "")
    assert says in done.stderr
    recorded = folder / "bin" / "calls.jsonl"
    assert not recorded.exists() or not any("push" in call for call in calls(folder))


def test_it_needs_its_settings(folder: Path) -> None:
    (folder / ".env").unlink()
    done = run(folder, "--dockerfile=agent/Dockerfile", "--tag=dev")
    assert "AWS_REGION is not set\nhint: cp .env.example .env" in done.stderr
