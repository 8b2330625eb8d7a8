"""The record of what a deployment created."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentcore_rl_toolkit.deploy.aws.state import State
from agentcore_rl_toolkit.errors import ConfigError


def test_the_record_ends_with_the_last_resource(folder: Path) -> None:
    state = State.load(folder)
    state.bind("1", "us-west-2")
    state.add("role", "a")
    state.add("role", "a")
    state.add("bucket", "b")
    again = State.load(folder)
    assert again.made == [{"kind": "role", "name": "a"}, {"kind": "bucket", "name": "b"}]
    assert (again.account, again.region) == ("1", "us-west-2")
    with pytest.raises(ConfigError, match="is deployed in us-west-2, account 1; not in us-west-2, account 2"):
        again.bind("2", "us-west-2")
    assert set(os.listdir(folder)) == {"Dockerfile", ".agentcore-rl.json"}
    again.remove("role", "a")
    again.remove("bucket", "b")
    assert os.listdir(folder) == ["Dockerfile"]


@pytest.mark.parametrize(
    ("text", "error"),
    [("{", "can't be read"), ('{"version": 9}', "another version"), ('{"version": 1, "x": 1}', "malformed")],
)
def test_an_unreadable_record_is_an_error(folder: Path, text: str, error: str) -> None:
    (folder / ".agentcore-rl.json").write_text(text)
    with pytest.raises(ConfigError, match=error):
        State.load(folder)
