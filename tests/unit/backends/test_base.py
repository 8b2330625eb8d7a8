"""Finding backends, the checks before a run, and showing a plan."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib

from agentcore_rl_toolkit.backends import base
from agentcore_rl_toolkit.backends.base import Backend, TrainingPlan, check_settings, find, names, require
from agentcore_rl_toolkit.backends.settings import LoopSettings, RolloutSettings, TrainSettings
from agentcore_rl_toolkit.errors import ConfigError
from support.ordinary_user import run_as_ordinary_user
from support.process import clean_env

ROOT = Path(__file__).parents[3]
ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/mine"


def test_ours_are_entry_points_like_others() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][base.GROUP]
    assert names() == sorted(declared)
    for name in names():
        backend = find(name)
        assert isinstance(backend, Backend)
        assert backend.name == name
        assert backend.settings().options == {}


def test_a_backend_of_ones_own_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine-1.0.dist-info").mkdir()
    (tmp_path / "mine-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    entries = f"[{base.GROUP}]\nmine = mine:BACKEND\nbroken = mine:NOTHING\n"
    (tmp_path / "mine-1.0.dist-info" / "entry_points.txt").write_text(entries)
    (tmp_path / "mine.py").write_text(
        "from agentcore_rl_toolkit.backends.settings import TrainSettings\n"
        "class Mine:\n"
        "    name, extra, settings = 'mine', '', TrainSettings\n"
        "    def plan(self, settings): ...\n"
        "    def train(self, settings): return {'steps': settings.steps, 'interrupted': False}\n"
        "BACKEND, NOTHING = Mine(), 3\n"
    )
    (tmp_path / "rows.jsonl").write_text("{}\n")

    def run(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "train", "--backend", name, "a.py"]
        environment = clean_env(PYTHONPATH=str(tmp_path))
        return subprocess.run(
            [*command, "--data", "rows.jsonl", "--steps", "3"], capture_output=True, text=True, env=environment
        )

    done = run("mine")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"steps": 3, "interrupted": False}
    assert "mine:NOTHING of agentcore_rl.backends is not a backend" in run("broken").stderr
    assert "did you mean mine?" in run("mime").stderr


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no backend named 'zzzz' is installed\nhint: installed are: .*trl"):
        find("zzzz")


def test_what_is_missing_names_its_extra() -> None:
    with pytest.raises(ImportError, match=r"it needs no_such_trainer.*\nhint: pip install 'agentcore-rl-toolkit\[x\]'"):
        require("no_such_trainer", "x", "it")


def test_a_plan_is_what_a_shell_would_be_told(tmp_path: Path) -> None:
    plan = TrainingPlan(
        backend="b",
        settings={},
        command=("echo", "a b", "c"),
        environment={"X": "it's"},
        files={"f.yaml": "a: 1\nb: 2\n"},
        notes=("fine",),
    )
    assert plan.text().splitlines()[:4] == ["# fine", "# f.yaml", "#   a: 1", "#   b: 2"]
    done = subprocess.run(["bash", "-c", plan.text() + '\nprintf "%s" "$X"'], capture_output=True, text=True)
    assert done.stdout == "a b c\nit's"


# --- checks before a run ------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", raising=False)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": }\n{"prompt": "b"}\n')
    return str(path)


def test_an_agent_on_this_machine(tmp_path: Path, rows: str) -> None:
    agent = tmp_path / "rl_app.py"
    settings = {"agent": str(agent), "data": rows, "eval_data": rows, "rows_per_step": 2}
    with pytest.raises(ConfigError, match="no agent found at"):
        check_settings(TrainSettings(**settings))
    agent.write_text("")
    assert check_settings(TrainSettings(**settings)) == (
        f"agent: {agent}, on this machine",
        f"data: 2 rows in {rows}",
        "data: line 2: Expecting value at column 12; left out",
        f"eval_data: 2 rows in {rows}",
        "eval_data: line 2: Expecting value at column 12; left out",
        "warning: 2 of 2 held-out rows are training rows too",
    )
    with pytest.raises(ConfigError, match="has 2 rows, and a step takes 3"):
        check_settings(TrainSettings(**settings | {"rows_per_step": 3}))


def test_a_run_in_a_folder_that_may_not_be_looked_into_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    settings = {"agent": "rl_app.py", "data": "rows.jsonl"}
    settings = {name: str(tmp_path / value) for name, value in (settings | {"output": "locked/run"}).items()}
    (tmp_path / "locked").mkdir(mode=0)
    said = run_as_ordinary_user(
        "from agentcore_rl_toolkit.backends.base import check_settings\n"
        "from agentcore_rl_toolkit.backends.settings import TrainSettings\n"
        f"check_settings(TrainSettings(rows_per_step=1, **{settings}))"
    ).stderr
    assert f"the run can't be written to {tmp_path}/locked/run: {tmp_path}/locked may not be written to" in said


def test_a_run_needs_a_folder_that_can_be_made_and_is_told_of_the_run_in_it(tmp_path: Path, rows: str) -> None:
    (tmp_path / "rl_app.py").write_text("")
    settings = {"agent": str(tmp_path / "rl_app.py"), "data": rows, "rows_per_step": 1}
    with pytest.raises(ConfigError, match=r"the run can't be written to .*: .*rows.jsonl is a file"):
        check_settings(LoopSettings(output=f"{rows}/run", **settings))
    (tmp_path / "run" / "checkpoints" / "checkpoint-3").mkdir(parents=True)
    notes = check_settings(LoopSettings(output=str(tmp_path / "run"), **settings))
    assert notes[-1].startswith(f"warning: {tmp_path / 'run'} has a run already: resume it (--resume)")
    assert "has a run" not in str(check_settings(LoopSettings(output=str(tmp_path / "run"), resume=True, **settings)))


def test_sessions_on_aws_need_a_bucket_and_a_way_to_the_gateway(rows: str) -> None:
    settings = {"agent": ARN, "data": rows, "rows_per_step": 1}
    for store in (None, "./runs", "/runs"):
        with pytest.raises(ConfigError, match="sessions on AWS can't store results in"):
            check_settings(TrainSettings(store=store, **settings))
    check_settings(TrainSettings(store="bucket", **settings))
    for url in (None, "http://localhost:9000", "http://127.0.0.1:9000"):
        with pytest.raises(ConfigError, match="can't reach a gateway"):
            check_settings(RolloutSettings(store="bucket", gateway_public_url=url, **settings))
    found = check_settings(RolloutSettings(store="bucket", gateway_public_url="https://gw.example.com", **settings))
    assert found[0] == f"agent: {ARN}, on AWS"


def test_what_is_not_on_aws_needs_neither(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for arn in (ARN.replace("us-west-2", "local"), ARN.replace("us-west-2", "ray")):
        assert "not on AWS" in check_settings(RolloutSettings(agent=arn, data=rows, rows_per_step=1))[0]
    monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", "http://127.0.0.1:1")
    assert "not on AWS" in check_settings(RolloutSettings(agent=ARN, data=rows, rows_per_step=1))[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "./nowhere"}, "no model found at ./nowhere"),
        ({"model": "runs/first/checkpoints"}, "no model found at runs/first/checkpoints"),
        ({"chat_template": "nowhere.jinja"}, "no chat template found at nowhere.jinja"),
        (
            {"report_to": "not_a_target"},
            "report_to=not_a_target needs a package that is not installed\nhint: choose wandb",
        ),
        ({"failures": {"timeout": "maybe"}}, "maybe"),
        ({"guard": {"constant": "stop"}}, "no guard is named 'constant'"),
        ({"guards_from": ("nowhere.py",)}, "nowhere.py"),
    ],
)
def test_a_check_finds_what_would_end_the_run_later(
    given: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rl_app.py").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (tmp_path / "held.jsonl").write_text('{"prompt": "b"}\n')
    known: dict[str, Any] = {"agent": "rl_app.py", "data": "rows.jsonl", "rows_per_step": 1, "eval_data": "held.jsonl"}
    notes = check_settings(LoopSettings(**known))
    assert "warning: 1 of 1 held-out rows are training rows too" in notes
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_settings(LoopSettings(**known, **given))


def test_a_model_that_was_not_checked_is_said(rows: str, tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").write_text("")
    known: dict[str, Any] = {"agent": str(tmp_path / "rl_app.py"), "data": rows, "rows_per_step": 1}
    (note,) = (note for note in check_settings(TrainSettings(model="runs/frist", **known)) if note.startswith("model"))
    assert note.startswith("model: runs/frist is not a folder here, so the run loads it from the Hugging Face hub")
    assert not any(note.startswith("model") for note in check_settings(TrainSettings(model="tiny", **known)))


def test_a_context_limit_above_the_models_own_is_said(rows: str, tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").write_text("")
    known: dict[str, Any] = {"agent": str(tmp_path / "rl_app.py"), "data": rows, "rows_per_step": 1}
    warning = "warning: context_limit=2049 has no effect: tiny has a context of 2048 tokens"
    assert warning in check_settings(RolloutSettings(context_limit=2049, **known))
    assert not any(one.startswith("warning") for one in check_settings(RolloutSettings(context_limit=2048, **known)))
