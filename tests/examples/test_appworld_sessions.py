"""The AppWorld agent of the examples: sandboxed sessions, a real gateway, code that runs, and policies from a script.

What needs the package `appworld` runs where it is installed (`make test-appworld`); elsewhere a stand-in of the same
signatures takes its place.
"""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.types import Status
from support.example import EXAMPLES, example, package
from support.process import clean_env
from support.scripted_model import ScriptedModel

HOME = EXAMPLES / "strands_appworld_agent"
TESTS = Path(__file__).parents[1]
TASKS = list(islice(package(HOME.name, "worlds.tasks").tasks("held-out"), 5))
appworld = package(HOME.name, "worlds.appworld")
demo = example(f"{HOME.name}/demo.py")
ROWS = [task.row for task in TASKS]
REAL = Path(appworld.appworld_python())
needs_appworld = pytest.mark.skipif(not REAL.exists(), reason="AppWorld is not installed: make test-appworld")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutClient]:
    with RolloutClient(HOME, tmp_path_factory.mktemp("results"), "exp") as client:
        yield client


def test_every_kind_of_task_can_be_solved(client: RolloutClient) -> None:
    found = demo.play(client, ROWS, [task.solution for task in TASKS])
    assert [(rollout.status, rollout.reward) for rollout in found] == [(Status.COMPLETED, 1.0)] * 5
    for task, rollout in zip(TASKS, found, strict=True):
        known, turns = rollout.fidelity, len(task.solution)  # once the task is complete there is no further turn
        assert (known.turns, known.tool_calls, known.rows, known.renders) == (turns, turns, 1, 0)
        assert known.trained == known.sampled


def test_mistakes_and_unfinished_work_cost_the_reward(client: RolloutClient) -> None:
    plans = [TASKS[0].wrong, TASKS[1].solution[:-1], TASKS[2].wrong]
    found = demo.play(client, ROWS[:3], plans)
    assert [(rollout.status, rollout.reward) for rollout in found] == [(Status.COMPLETED, 0.0)] * 3
    assert found[1].fidelity.turns == len(TASKS[1].solution)  # the last one says "Done." and no more


def test_the_policy_sees_what_its_code_printed(client: RolloutClient) -> None:
    look = ("print(apis.api_docs.show_api_doc(app_name='notes', api_name='show_note'))", "open('/etc/passwd')", "1 / 0")
    (rollout,) = demo.play(client, ROWS[3:4], [(*look, *TASKS[3].solution)])
    assert rollout.reward == 1.0
    said = demo.load_tokenizer(demo.tiny.path()).decode(rollout.rows[0].token_ids)
    for seen in ("'description': 'A note with its text.'", "'/etc/passwd' is out of reach", "ZeroDivisionError"):
        assert seen in said


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (ROWS[0] | {"prompt": ["hi"]}, "payload.prompt is a list; only text is taken"),
        (ROWS[0] | {"prompt": [{"toolUse": {"name": "run_code"}}]}, "payload.prompt has tool-use blocks"),
        ({"prompt": "x", "task_id": "../../x"}, "payload.task_id String should match pattern"),
        ({"prompt": "x", "task_id": "golf-1", "world": "builtin"}, "there is no built-in task 'golf-1'"),
    ],
)
def test_a_payload_that_is_refused_is_a_failed_result(payload: Any, why: str, client: RolloutClient) -> None:
    result = client.invoke(payload, base_url="http://127.0.0.1:9/v1", model_id="none").result(timeout=60)
    assert (result["status_code"], result["error"]["kind"]) == (500, "agent_error")
    assert why in result["stop_reason"]


def test_eval_takes_the_folder(tmp_path: Path) -> None:
    plans = {TASKS[0].instruction: TASKS[0].solution, TASKS[1].instruction: TASKS[1].wrong}

    def script(body: dict[str, Any]) -> dict[str, Any]:
        said = json.dumps(body["messages"][1]["content"])
        plan = next(plan for prompt, plan in plans.items() if prompt in said)
        step = sum(message["role"] == "tool" for message in body["messages"])
        return {"tool_calls": [("run_code", {"code": plan[step]})]} if step < len(plan) else {"content": "Done."}

    with ScriptedModel(script).serving() as model:
        command = [str(Path(sys.executable).parent / "agentcore-rl"), "eval", str(HOME), "--limit", "2", "--quiet"]
        command += ["--base-url", model.base_url, "--model-id", "script", "--output", "out.json"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean_env(), timeout=90)
    assert done.returncode == 0, done.stderr
    outcomes = sorted(json.loads((tmp_path / "out.json").read_text())["outcomes"], key=lambda outcome: outcome["index"])
    assert [(o["status"], o["rewards"]) for o in outcomes] == [("completed", 1.0), ("completed", 0.0)]


# --- AppWorld, by a stand-in ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its own environment that has a package `appworld`, with a task."""
    root = tmp_path_factory.mktemp("appworld")
    venv.create(root, symlinks=True)
    (library,) = root.glob("lib/python*/site-packages")
    shutil.copytree(TESTS / "support" / "fake_appworld" / "appworld", library / "appworld")
    task = root / "data" / "tasks" / "abc_1"
    task.mkdir(parents=True)
    (task / "specs.json").write_text(json.dumps({"instruction": "What is 6 times 7?", "answer": 42}))
    (root / "data" / "datasets").mkdir()
    (root / "data" / "datasets" / "dev.txt").write_text("abc_1\nabc_1\n")
    return root


@pytest.fixture
def settings(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("APPWORLD_PYTHON", str(stand_in / "bin" / "python"))
    monkeypatch.setenv("APPWORLD_ROOT", str(stand_in))
    return stand_in


def test_appworld_is_driven_in_its_own_environment(settings: Path) -> None:
    with appworld.AppWorldWorld("abc_1") as one, appworld.AppWorldWorld("abc_1") as other:
        assert one.instruction == "What is 6 times 7?"
        assert one.execute("x = 6 * 7\nprint(x)") == "42\n"
        assert other.execute("y = 1") == "Execution successful."
        assert not one.completed()
        assert one.evaluate().failed == ("assert answers match.", "a test that was not reached")
        one.execute("apis.supervisor.complete_task(answer=x)")
        assert one.completed()
        assert one.evaluate().success
        assert not other.completed()
        folder = Path(one.execute("import os\nprint(os.getcwd())").strip())
        assert (folder / "experiments" / "outputs" / "rollout" / "tasks" / "abc_1" / "code.py").exists()
    assert not folder.exists()
    assert sorted(path.name for path in (settings / "data").iterdir()) == ["datasets", "tasks"]


def test_what_appworld_says_no_to_is_told(settings: Path) -> None:
    with pytest.raises(ConfigError, match=r"AppWorld: Exception: The task directory .* doesn't exist"):
        appworld.AppWorldWorld("none_1")
    with appworld.AppWorldWorld("abc_1") as world, pytest.raises(ConfigError, match="AppWorld's process ended"):
        world.execute("import os; os._exit(1)")


def test_appworlds_tasks_become_rows(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert example(f"{HOME.name}/prepare.py").main(["appworld", "dev", "--limit", "1"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row == {"prompt": "What is 6 times 7?", "task_id": "abc_1", "world": "appworld"}


# --- AppWorld itself --------------------------------------------------------------------------------------------------

SIGNATURES = """
import inspect, json
from appworld import AppWorld, load_task_ids
from appworld.evaluator import TestTracker
from appworld.task import Task
found = {"AppWorld": AppWorld, "execute": AppWorld.execute, "evaluate": AppWorld.evaluate,
         "load_task_ids": load_task_ids, "task_completed": AppWorld.task_completed,
         "to_dict": TestTracker.to_dict, "load": Task.load}
print(json.dumps({name: list(inspect.signature(value).parameters) for name, value in found.items()}))
"""


@needs_appworld
def test_the_stand_in_has_appworlds_signatures(stand_in: Path) -> None:
    real = json.loads(subprocess.run([REAL, "-c", SIGNATURES], capture_output=True, text=True, check=True).stdout)
    fake = SIGNATURES.replace("appworld.evaluator", "appworld")
    python = stand_in / "bin" / "python"
    ours = json.loads(subprocess.run([python, "-c", fake], capture_output=True, text=True, check=True).stdout)
    assert set(ours.pop("AppWorld")) <= set(real.pop("AppWorld"))
    assert ours == real
    used = inspect.getsource(appworld) + (HOME / "worlds" / "_appworld.py").read_text()
    for name in ("task_completed", "evaluate", "to_dict", "load_task_ids", "execute"):
        assert name in used


@needs_appworld
@pytest.mark.timeout(600)
def test_a_rollout_in_appworld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent in sandboxed sessions, AppWorld's own loader, shell and evaluator, and a task of our making."""
    agent = tmp_path / "agent"
    shutil.copytree(HOME, agent)
    make = [REAL, str(TESTS / "real_appworld" / "make_task.py"), str(agent)]
    subprocess.run(make, check=True, cwd=tmp_path)
    monkeypatch.setenv("APPWORLD_ROOT", str(agent))
    assert example(f"{HOME.name}/prepare.py").main(["appworld", "train"]) == 0
    row = json.loads(capsys.readouterr().out)
    look = "me = apis.supervisor.show_profile()\nprint(me['phone_number'])"
    done = "apis.supervisor.complete_task(answer=me['phone_number'][-4:])"
    with RolloutClient(agent, tmp_path / "results", "exp") as client:
        for plan, reward in (((look, done), 1.0), ((look, done.replace("-4", "-3")), 0.0), ((look,), 0.0)):
            (rollout,) = demo.play(client, [row], [plan])
            assert (rollout.status, rollout.reward) == (Status.COMPLETED, reward), rollout.error
            assert rollout.fidelity.turns == 2
