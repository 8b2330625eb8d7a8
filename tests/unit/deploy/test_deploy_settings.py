"""Where a deployment's settings come from, what it notes, and the tag of what it builds."""

from __future__ import annotations

import argparse
import json
import os
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.cli import build_parser
from agentcore_rl_toolkit.cli.rollouts.train import read
from agentcore_rl_toolkit.deploy.aws.calls import Aws
from agentcore_rl_toolkit.deploy.aws.policies import Place, build_policy, runtime_policy
from agentcore_rl_toolkit.deploy.aws.state import State
from agentcore_rl_toolkit.deploy.deploy_settings import read_settings
from agentcore_rl_toolkit.deploy.doctor.check_dockerfile import check_recipe
from agentcore_rl_toolkit.deploy.image import content_tag
from agentcore_rl_toolkit.deploy.scaffold import TEMPLATES
from agentcore_rl_toolkit.deploy.snippets import Deployed, snippets
from agentcore_rl_toolkit.errors import AwsRefused, ConfigError
from support.process import http_server

ROOT = Path(__file__).parents[3]
PLACE = Place("123456789012", "us-west-2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCOUNT", "ECR_REPO_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My-Agent").mkdir()
    (tmp_path / "My-Agent" / "Dockerfile").touch()
    return tmp_path / "My-Agent"


def settings(folder: Path, state: State | None = None, **given: Any) -> Any:
    return read_settings(folder, state or State(folder / "none"), given)


def test_the_order_of_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = settings(folder)
    assert (known.name, known.prefix, known.repository, known.region) == ("My_Agent", "My_Agent", "my-agent", None)
    state = State(folder / "x", region="eu-west-1", settings={"repository": "kept", "bucket": "kept", "subnets": ["s"]})
    known = settings(folder, state)
    assert (known.repository, known.region, known.bucket, known.subnets) == ("kept", "eu-west-1", "kept", ("s",))
    Path(".env").write_text("AWS_REGION=from-here\nECR_REPO_NAME=here\n")
    assert settings(folder, state).repository == "here"
    (folder / ".env").write_text("AWS_REGION=from-folder\nAWS_ACCOUNT=123456789012\n")
    known = settings(folder, state)
    assert (known.region, known.account, known.repository) == ("from-folder", "123456789012", "kept")
    monkeypatch.setenv("AWS_REGION", "from-environment")
    assert settings(folder).region == "from-environment"
    assert settings(folder, region="given").region == "given"


def test_bad_settings(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"AWS_ACCOUNT '12' is not an account\nhint: it has 12 digits"):
        settings(folder, account="12")
    (folder / "more.json").write_text('{"Version": "2012-10-17"}')
    with pytest.raises(ConfigError, match=r"hint: expected JSON with \"Statement\""):
        settings(folder, policy=str(folder / "more.json")).statements()


def test_the_notes_are_whole_and_end_with_what_they_are_about(folder: Path) -> None:
    state = State.load(folder)
    state.check_place("1", "us-west-2")
    state.note("role", "a")
    state.note("role", "a")
    state.note("bucket", "b")
    again = State.load(folder)
    assert again.made == [{"kind": "role", "name": "a"}, {"kind": "bucket", "name": "b"}]
    assert (again.account, again.region) == ("1", "us-west-2")
    with pytest.raises(ConfigError, match="is deployed in us-west-2, account 1; not in us-west-2, account 2"):
        again.check_place("2", "us-west-2")
    assert set(os.listdir(folder)) == {"Dockerfile", ".agentcore-rl.json"}
    again.forget("role", "a")
    again.forget("bucket", "b")
    assert os.listdir(folder) == ["Dockerfile"]


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "can't be read"), ('{"version": 9}', "another version"), ('{"version": 1, "x": 1}', "malformed")],
)
def test_notes_that_can_not_be_read_are_not_forgotten(folder: Path, text: str, says: str) -> None:
    (folder / ".agentcore-rl.json").write_text(text)
    with pytest.raises(ConfigError, match=says):
        State.load(folder)


def test_the_tag_is_that_of_the_content(folder: Path) -> None:
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
def test_every_recipe_of_ours_can_be_built_from_a_checkout_and_listens(recipe: Path) -> None:
    said = recipe.read_text()
    assert check_recipe(recipe.parent).state == "ok"
    assert "FROM public.ecr.aws/docker/library/python:3" in said  # Podman takes no short names
    assert "COPY pyproject.toml wheels* ./wheels/\nRUN pip install --find-links wheels ./wheels\n" in said
    assert "py-modules = []" in next(recipe.parent.glob("pyproject.t*")).read_text()  # there, no module is at hand
    ignored = next(path for path in recipe.parent.iterdir() if path.name.strip(".").startswith("dockerignore"))
    assert {".env", ".agentcore-rl.json", "**/__pycache__"} <= set(ignored.read_text().split())


def test_no_policy_allows_everything(folder: Path) -> None:
    policies = [
        runtime_policy(PLACE, name="n", repository="r", bucket="b", prefix="", queue="q"),
        build_policy(PLACE, project="p", repository="r", bucket="b", key="k"),
    ]
    for policy in policies:
        for statement in policy["Statement"]:
            assert not any("*" in action for action in statement["Action"])
            assert statement["Resource"] != "*" or statement["Action"] == ["ecr:GetAuthorizationToken"]
    assert (
        runtime_policy(Place("1", "cn-north-1"), name="n", repository="r", bucket="b", prefix="p")["Statement"][-1][
            "Resource"
        ]
        == "arn:aws-cn:s3:::b/p/*"
    )


def test_a_dry_run_shows_policies_as_what_they_say() -> None:
    shown: list[str] = []
    aws = Aws("us-west-2", dry_run=True, show=shown.append)
    assert aws.change("iam", "put_role_policy", RoleName="r", PolicyDocument='{"a": 1}') == {}
    assert aws.change("s3", "put_object", Bucket="b", Body=b"123") == {}
    assert json.loads(shown[0].removeprefix("iam PutRolePolicy ")) == {"RoleName": "r", "PolicyDocument": {"a": 1}}
    assert '"<3 bytes>"' in shown[1]


def test_a_page_in_place_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies say what they have to say in HTML, and some of it as a success."""

    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<!doctype html>\n<p>Please log in.\n</p>")

        def log_message(self, *args: object) -> None:
            pass

    with http_server(Page) as url:
        for name, value in {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}.items():
            monkeypatch.setenv(name, value)
        aws = Aws("us-west-2")
        with pytest.raises(AwsRefused, match=r"iam could not be used: .*Please log in") as refused:
            aws.read("iam", "get_role", RoleName="r")
        aws.close()
    assert str(refused.value).endswith("\nhint: check the region and the network")
    assert str(refused.value).count("\n") == 1


@pytest.mark.parametrize("trainer", ["trl", "tinker", "verl"])
def test_the_commands_for_trainers_are_commands(trainer: str, folder: Path) -> None:
    arn = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math-abcdefghij"
    text = snippets(Deployed("math", arn, "s3://b/math", "image:1", "https://sqs/q"))[trainer].partition("\n# or")[0]
    words = text.replace("\\\n", " ").split()
    assert words[:3] == ["agentcore-rl", "train", arn]
    backend, known, _ = read(words[words.index("--backend") + 1], None, words[2:])
    assert (backend.name, known.agent, known.store, known.sqs_url) == (trainer, arn, "s3://b/math", "https://sqs/q")


def test_the_guides_commands_are_commands() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "deploy.md").read_text()
    lines = [line.partition("#")[0].split() for line in page.splitlines() if line.startswith("agentcore-rl ")]
    assert len(lines) >= 6
    for words in lines:
        assert build_parser().parse_args(words[1:]).verb == words[1]
    for option in re.findall(r"`(--[a-z-]+)", page):
        assert any(option in verb.format_help() for verb in _verbs()), option


def _verbs() -> list[argparse.ArgumentParser]:
    (subparsers,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return list(subparsers.choices.values())
