"""What objects show at a prompt and in a notebook: what they are, in a line, and no secret."""

from __future__ import annotations

from pathlib import Path

from agentcore_rl_toolkit import AgentCoreConfig, Gateway, Result, RolloutClient, open_store
from agentcore_rl_toolkit.backends.settings import LoopSettings
from agentcore_rl_toolkit.engine import open_engine
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.rewards import ExactMatch, GSM8KReward
from agentcore_rl_toolkit.rollout import Group, RolloutRunner
from agentcore_rl_toolkit.runtime.local import AgentSource, LocalRuntime
from agentcore_rl_toolkit.types import Status
from support.gateway import gateway_tokenizer
from support.rollouts import failed, make_rollout


def test_rollouts_groups_and_results_say_how_it_went() -> None:
    good, bad = make_rollout(reward=1.0), failed(Status.TIMEOUT, error="no result after 120 s")
    assert repr(good).startswith("Rollout(")
    assert "'completed', action='train', reward=1.0, turns=" in repr(good)
    assert "'timeout'" in repr(bad)
    assert "error='no result after 120 s'" in repr(bad)
    assert repr(Group(0, "row-1", {}, (good,), dropped="why")) == (
        "Group('row-1', trained=1, rewards=[1.0], dropped='why')"
    )
    assert repr(Result({"status_code": 200, "rewards": 1.0})) == "Result('completed', rewards=1.0, key=None)"
    long = Result({"status_code": 500, "stop_reason": "x" * 10_000})
    assert len(repr(long)) < 300


def test_nothing_shows_a_secret(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").touch()
    shown = [
        AgentCoreConfig(model_api_key="hush" * 6),
        AgentSource.parse(tmp_path, env={"OPENAI_API_KEY": "hush" * 6}),
        LoopSettings(agent="a", env={"OPENAI_API_KEY": "hush" * 6}),
        LocalRuntime(tmp_path, token="hush" * 6),
        Gateway(ScriptedEngine([]), tokenizer=gateway_tokenizer(), admin_key="hush" * 6),
        open_engine("vllm=http://host:1", api_key="hush" * 6),
    ]
    assert [value for value in shown if "hush" in repr(value)] == []


def test_objects_say_what_they_are_of(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").touch()
    assert repr(LoopSettings(agent="a", steps=3)) == "LoopSettings(agent='a', steps=3)"
    assert repr(open_store("bucket")) == "S3Store('s3://bucket')"
    assert repr(open_store("/tmp/x")) == "LocalStore('/tmp/x')"
    assert repr(open_engine(["vllm=http://a:1", "http://b:2"])) == (
        "Replicas(VllmEngine('http://a:1'), VllmEngine('http://b:2'))"
    )
    assert [repr(GSM8KReward()), repr(ExactMatch(normalize=True))] == ["GSM8KReward()", "ExactMatch(normalize=True)"]
    assert repr(LocalRuntime(tmp_path)) == f"LocalRuntime('{tmp_path.name}')"
    with RolloutClient("arn:x", "bucket", "exp-1") as client:
        assert repr(client) == "RolloutClient('arn:x', store='bucket', exp_id='exp-1')"
        runner = RolloutRunner(client, Gateway(ScriptedEngine([]), tokenizer=gateway_tokenizer()))
        shown = "RolloutRunner(RolloutClient('arn:x', store='bucket', exp_id='exp-1'), Gateway('ScriptedEngine'"
        assert repr(runner).startswith(shown)
        assert repr(runner).endswith(", n=8)")
        runner.close()
    assert repr(ScriptedEngine([])) == "ScriptedEngine(requests=0)"
    with Gateway(ScriptedEngine([]), tokenizer=gateway_tokenizer()) as gateway:
        assert repr(gateway) == f"Gateway('ScriptedEngine', url={gateway.url!r})"
