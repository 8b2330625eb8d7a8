"""The office agent of the examples: sandboxed sessions, a real gateway, real files, and policies from a script."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.types import Status
from support.example import EXAMPLES, example, package
from support.process import clean_env
from support.scripted_model import ScriptedModel

HOME = EXAMPLES / "strands_officebench_agent"
TASKS = list(islice(package(HOME.name, "office.tasks").tasks("held-out"), 10))
demo = example(f"{HOME.name}/demo.py")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutClient]:
    with RolloutClient(HOME, tmp_path_factory.mktemp("results"), "exp") as client:
        yield client


def test_every_task_can_be_solved(client: RolloutClient) -> None:
    found = demo.play(client, TASKS, [task.solution for task in TASKS])
    assert [(rollout.status, rollout.reward) for rollout in found] == [(Status.COMPLETED, 1.0)] * 10
    for task, rollout in zip(TASKS, found, strict=True):
        known = rollout.fidelity
        turns = len(task.solution) + 1
        assert (known.turns, known.tool_calls, known.rows, known.renders) == (turns, turns - 1, 1, 0)
        assert known.trained == known.sampled


def test_mistakes_are_told_and_cost_the_reward(client: RolloutClient) -> None:
    played = [TASKS[n] for n in (0, 5, 8)]
    wrong = demo.play(client, played, [task.wrong for task in played])
    assert [(rollout.status, rollout.reward) for rollout in wrong] == [(Status.COMPLETED, 0.0)] * 3
    outside = [
        ("file_read", {"file": "/etc/passwd"}),
        ("pdf_write", {"file": "../x.pdf", "text": "x"}),
        *TASKS[0].solution,
    ]
    (rollout,) = demo.play(client, TASKS[:1], [outside])
    assert (rollout.reward, rollout.fidelity.turns) == (1.0, 4)
    said = demo.load_tokenizer(demo.tiny.path()).decode(rollout.rows[0].token_ids)
    assert "'/etc/passwd' is not a path inside the workspace" in said
    assert "'../x.pdf' is not a path inside the workspace" in said


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"prompt": ["hi"]}, "payload.prompt is a list; only text is taken"),
        ({"prompt": [{"toolUse": {"name": "file_read", "input": {}}}]}, "payload.prompt has tool-use blocks"),
        ({"prompt": "x", "files": {"../../x": "x"}}, "'../../x' is not a path inside the workspace"),
    ],
)
def test_a_payload_that_is_refused_is_a_failed_result(payload: Any, why: str, client: RolloutClient) -> None:
    result = client.invoke(payload, base_url="http://127.0.0.1:9/v1", model_id="none").result(timeout=60)
    assert (result["status_code"], result["error"]["kind"]) == (500, "agent_error")
    assert why in result["stop_reason"]


def test_eval_takes_the_folder(tmp_path: Path) -> None:
    plans = {TASKS[0].prompt: TASKS[0].solution, TASKS[1].prompt: TASKS[1].solution, TASKS[2].prompt: TASKS[2].wrong}

    def script(body: dict[str, Any]) -> dict[str, Any]:
        said = body["messages"][1]["content"]
        plan = next(plan for prompt, plan in plans.items() if prompt in json.dumps(said))
        step = sum(message["role"] == "tool" for message in body["messages"])
        return {"tool_calls": [plan[step]]} if step < len(plan) else {"content": "Done."}

    with ScriptedModel(script).serving() as model:
        command = [str(Path(sys.executable).parent / "agentcore-rl"), "eval", str(HOME), "--limit", "3", "--quiet"]
        command += ["--base-url", model.base_url, "--model-id", "script", "--output", "out.json"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean_env(), timeout=90)
    assert done.returncode == 0, done.stderr
    outcomes = sorted(json.loads((tmp_path / "out.json").read_text())["outcomes"], key=lambda outcome: outcome["index"])
    assert [(o["status"], o["rewards"]) for o in outcomes] == [("completed", r) for r in (1.0, 1.0, 0.0)]
