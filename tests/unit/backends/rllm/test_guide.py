"""The guide to rLLM: its commands are accepted, its file is a configuration, its table is the truth."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.rllm import RllmSettings
from agentcore_rl_toolkit.backends.rllm.overrides import run_overrides
from agentcore_rl_toolkit.cli import main
from support.agent import SCORED

GUIDE = (Path(__file__).parents[4] / "docs" / "guides" / "rllm.md").read_text()
COMMANDS = [
    shlex.split(block.replace("\\\n", " "))[1:]
    for block in re.findall(r"```bash\n(agentcore-rl train.*?)```", GUIDE, re.DOTALL)
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_commands(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text('{"prompt": "a"}\n' * 64)
    (tmp_path / "run.toml").write_text(GUIDE.split("```toml\n")[1].split("```")[0])
    (tmp_path / "agents" / "math").mkdir(parents=True)
    (tmp_path / "agents" / "math" / "rl_app.py").write_text(SCORED)
    assert main([*command, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "rllm.remote_runtime.enabled=true" in shown
    if "run.toml" in command:
        assert "rllm/backend=verl" in shown
        assert "trainer.n_gpus_per_node=8" in shown
        assert "+actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser=hermes" in shown
        assert "rllm.data.max_response_length=2048" in shown


def test_the_table_of_overrides() -> None:
    lines = GUIDE.split("<!-- rllm settings")[1].split("\n\n")[0].splitlines()[3:]
    assert len(lines) == 11
    other: dict[str, Any] = {"agent": "arn:2", "store": "b2", "exp_id": "e2", "model": "m2", "output": "/o2"}
    other |= {"tps_limit": 3.0, "timeout": 3.0, "rows_per_step": 3, "seed": 3, "steps": 3, "n": 3}
    for line in lines:
        option, names = (cell.strip() for cell in line.strip("|").split("|"))
        field = option.strip("`-").replace("-", "_").lower()
        before = written({})
        after = written({field: other[field]})
        assert {name for name in after if after[name] != before[name]} >= set(re.findall(r"`(.*?)`", names)), line


def written(changed: dict[str, Any]) -> dict[str, str]:
    """The overrides of both trainers, by their bare names."""
    given = {"agent": "arn:1", "store": "b1", "exp_id": "e1", "model": "m1", "output": "/o1"} | changed
    found: dict[str, str] = {}
    for trainer in ("verl", "tinker"):
        settings = dataclasses.replace(RllmSettings(trainer=trainer), **given)
        texts = run_overrides(settings, given["agent"], given["store"], given["exp_id"], 100)
        found |= {name.lstrip("+"): value for name, _, value in (text.partition("=") for text in texts)}
    return found
