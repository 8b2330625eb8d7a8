"""The agents of `examples/frameworks/harnesses`: command line tools that run in sessions of the local runtime."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import Gateway, RolloutClient
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.render.tokenizer import load_tokenizer
from agentcore_rl_toolkit.rollout import run_rollouts
from real_harnesses.harness import call

FOLDER = Path(os.environ.get("AGENTCORE_RL_TEST_HARNESSES", ".venv/harnesses")).absolute()
AGENTS = Path(__file__).parents[2] / "examples" / "frameworks" / "harnesses"
ROW = {"prompt": "Make the list say buy milk.", "before": "buy bread\n", "after": "buy milk\n"}
EDIT = "sed -i s/bread/milk/ todo.txt"
CALLS = {"claude_code": call("Bash", command=EDIT), "codex": call("exec_command", cmd=EDIT)}


def policy(tokenizer: Any, edit: str) -> Callable[[SampleRequest], list[int]]:
    """Edits the file, then says so, in the tool format of the built-in policy."""

    def say(request: SampleRequest) -> list[int]:
        seen = tokenizer.decode(list(request.prompt))
        return list(tokenizer.encode(("It is done." if edit in seen else edit) + "<|im_end|>"))

    return say


@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CALLS)
def test_a_command_line_tool_in_a_session(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{FOLDER / name / 'node_modules' / '.bin'}:{os.environ['PATH']}")
    engine = ScriptedEngine(policy(load_tokenizer(tiny.path()), CALLS[name]), context_length=None, models=("policy",))
    agent = AGENTS / f"{name}_agent.py"
    with Gateway(engine, tokenizer=tiny.path()) as gateway, RolloutClient(agent, tmp_path, name) as client:
        options = {"client": client, "gateway": gateway, "model": "policy", "timeout": 300, "keep_dropped": True}
        (group,) = run_rollouts([ROW], 2, **options)
    for rollout in [*group.rollouts, *group.others]:
        assert (rollout.error, rollout.reward) == (None, 1.0), rollout
        assert (rollout.fidelity.turns, rollout.fidelity.rows) == (2, 1)
        assert rollout.fidelity.trained == rollout.fidelity.sampled
