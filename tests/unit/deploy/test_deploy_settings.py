"""Where a deployment's settings come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.deploy.aws.state import State
from agentcore_rl_toolkit.deploy.deploy_settings import DeploySettings, read_settings
from agentcore_rl_toolkit.errors import ConfigError


def settings(folder: Path, state: State | None = None, **given: Any) -> DeploySettings:
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


def test_the_next_deploy_reuses_what_was_given(folder: Path) -> None:
    known = settings(folder, bucket="b-1", environment={"A": "1"}, subnets=("s",), account="123456789012")
    assert known.to_keep() == {
        "name": "My_Agent",
        "bucket": "b-1",  # at its root, so that a client that names the bucket alone finds the results
        "repository": "my-agent",
        "environment": {"A": "1"},
        "subnets": ("s",),
    }
    assert settings(folder, State(folder / "x", settings={"prefix": "old"}), bucket="b-1").prefix == "old"
    state = State(folder / "x", settings=known.to_keep())
    assert settings(folder, state, environment={"B": "2", "A": ""}).environment == {"B": "2"}


@pytest.mark.parametrize("name", ["a", "Mine", "a//b", "a..b", "-a", "a" * 257])
def test_repository_names_that_ecr_refuses(name: str, folder: Path) -> None:
    assert settings(folder, repository="team/my__agent-1.x").repository == "team/my__agent-1.x"
    with pytest.raises(ConfigError, match="is not a valid ECR repository name"):
        settings(folder, repository=name)


def test_bad_settings(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"AWS_ACCOUNT '12' is not an account id\nhint: it has 12 digits"):
        settings(folder, account="12")
    (folder / "more.json").write_text('{"Version": "2012-10-17"}')
    with pytest.raises(ConfigError, match=r"hint: write an IAM policy: JSON with \"Statement\""):
        settings(folder, policy=str(folder / "more.json")).policy_statements()
