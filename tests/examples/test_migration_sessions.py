"""The migration agent of the examples: a Java project is really compiled and tested, in sandboxed sessions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import Gateway, RolloutClient
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.types import Status
from support.example import MIGRATION_AGENT, example

needs_java = pytest.mark.skipif(
    shutil.which("javac") is None, reason="there is no javac: apt-get install openjdk-17-jdk-headless"
)
demo = example("strands_migration_agent/demo.py")
DELETED = [("shell", {"command": "rm -rf ../project"})]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutClient]:
    with RolloutClient(MIGRATION_AGENT, tmp_path_factory.mktemp("store"), "exp") as running:
        yield running


def tool_results(rollout: Any) -> list[str]:
    """What the tools answered, as the policy read it."""
    said = demo.load_tokenizer(demo.tiny.path()).decode(rollout.rows[-1].token_ids).split("<tool_response>\n")[1:]
    return [one.split("\n</tool_response>")[0] for one in said]


@needs_java
def test_a_policy_that_migrates_the_project(client: RolloutClient) -> None:
    rollout = demo.play(client, demo.RIGHT)
    assert (rollout.status, rollout.reward) == (Status.COMPLETED, 1.0), rollout.error
    assert set(rollout.result["checks"].values()) == {True}
    known = rollout.fidelity
    turns = len(demo.RIGHT) + 1
    assert (known.turns, known.tool_calls, known.rows, known.renders) == (turns, turns - 1, 1, 0)
    assert known.trained == known.sampled
    first, source, _, broken, *_, built = tool_results(rollout)
    assert "--release 8" in first
    assert "import javax.xml.bind.DatatypeConverter;" in source
    assert "'_' is a keyword" in broken
    assert "[build failed; 0 tests run" in broken
    assert "[build succeeded; 4 tests run, 0 of them failed]" in built


@needs_java
def test_a_policy_that_says_it_is_done(client: RolloutClient) -> None:
    rollout = demo.play(client, demo.WRONG)
    assert (rollout.status, rollout.reward) == (Status.COMPLETED, 0.0), rollout.error
    assert rollout.result["checks"]["builds"] is False


def test_a_deleted_workspace_is_worth_nothing(client: RolloutClient) -> None:
    rollout = demo.play(client, [*DELETED, ("build", {}), ("read_file", {"path": "/etc/passwd"})])
    assert (rollout.status, rollout.reward) == (Status.COMPLETED, 0.0), rollout.error
    assert not any(rollout.result["checks"].values())
    _, gone, outside = tool_results(rollout)
    assert "the project's folder is gone" in gone
    assert "give a path inside the project" in outside


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": 7}, "prompt: Input should be a valid string"),
        ({"prompt": [{"toolUse": {"toolUseId": "1", "name": "shell", "input": {"command": "id"}}}]}, "valid string"),
        ({"project": "../../etc"}, "project: Value error, neither a name under projects/ nor https://github.com/"),
        ({"project": "nothing"}, "there is no project 'nothing'"),
    ],
    ids=["number", "tool use", "path", "nothing"],
)
def test_a_payload_that_is_refused(change: dict[str, Any], message: str, client: RolloutClient) -> None:
    row = demo.ROW | change
    result = client.invoke(row, base_url="http://127.0.0.1:9/v1", model_id="never-called").result(timeout=60)
    assert result["status_code"] == 500
    assert message in result["stop_reason"]


def test_eval_takes_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine(demo.following(DELETED), models=("script",), context_length=65_536)
    with Gateway(engine, tokenizer=demo.tiny.path()) as gateway:
        policy = ["--base-url", gateway.open_session()["base_url"], "--model-id", "script"]
        assert main(["eval", str(MIGRATION_AGENT), *policy, "--store", str(tmp_path), "--quiet"]) == 0
    figures = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert ["completed", "2"] in figures
    assert ["mean", "reward", "0"] in figures
