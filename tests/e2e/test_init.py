"""`agentcore-rl init`: for each framework a folder that runs at once, with a policy that is a script."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomllib

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.deploy.scaffold.new_agent import FRAMEWORKS, diff_side
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.render.tokenizer import load_tokenizer
from support.gateway import call_text

EXPRESSIONS = {"pears": "6*7", "marbles": "(12+15)*4", "train": "9*48-57", "stickers": "96/8-5"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    tokenizer = load_tokenizer(tiny.path())

    def say(request: SampleRequest) -> Sequence[int]:
        seen = tokenizer.decode(list(request.prompt))
        _, responded, result = seen.rpartition("<tool_response>\n")
        expression = next(value for word, value in EXPRESSIONS.items() if word in seen)
        said = (
            f"The answer is {result.splitlines()[0]}." if responded else call_text("calculator", expression=expression)
        )
        return tokenizer.encode(said + "<|im_end|>")

    with Gateway(ScriptedEngine(say), tokenizer=tiny.path()) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_new_agent_is_evaluated_as_it_is(
    framework: str, gateway: Gateway, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", "my-agent", "--framework", framework]) == 0
    written = {Path(line).name for line in capsys.readouterr().out.splitlines()}
    assert written >= {
        "basic_app.py",
        "rl_app.py",
        "reward.py",
        "rows.jsonl",
        "pyproject.toml",
        "Dockerfile",
        "README.md",
    }
    monkeypatch.chdir("my-agent")
    rows = 4 if framework == "strands" else 1  # they are the same for all
    session = gateway.open_session()
    given = ["--base-url", session["base_url"], "--model-id", "scripted", "--quiet", "--output", "out.json"]
    assert main(["eval", "rl_app.py", "--data", "rows.jsonl", "--limit", str(rows), *given]) == 0
    summary = json.loads(Path("out.json").read_text())["summary"]
    assert (summary["rollouts"], summary["reward"]) == (rows, 1.0)
    assert gateway.trajectories(session["session_id"]).fidelity.tool_calls == rows


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_its_files_agree_with_each_other(framework: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "my-agent", "--framework", framework]) == 0
    agent = folder / "my-agent"
    readme = (agent / "README.md").read_text()
    diff = readme.split("```diff\n")[1].split("```")[0]
    assert (agent / "basic_app.py").read_text() == diff_side(diff, "-")
    assert (agent / "rl_app.py").read_text() == diff_side(diff, "+")
    for name in ("basic_app.py", "rl_app.py", "reward.py", "calculator.py"):
        compile((agent / name).read_text(), name, "exec")
    project: dict[str, Any] = tomllib.loads((agent / "pyproject.toml").read_text())["project"]
    assert project["name"] == "my-agent"
    for requirement in FRAMEWORKS[framework].requirements:
        assert requirement in project["dependencies"]
        assert f"'{requirement}'" in readme
    assert "$" not in readme


def test_the_examples_in_its_docstrings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["init", "my-agent"]) == 0
    for name, ran in {"calculator": 1, "reward": 1}.items():
        values: dict[str, Any] = {"__name__": name}
        exec((folder / "my-agent" / f"{name}.py").read_text(), values)
        tests = list(doctest.DocTestFinder().find(values.get("MathReward") or values["evaluate"], name, globs=values))
        results = [doctest.DocTestRunner().run(test) for test in tests]
        assert sum(result.attempted for result in results) == ran
        assert not any(result.failed for result in results)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["my-agent", "--framework", "cobol"], "unknown framework 'cobol'\nhint: choose one of strands, langgraph"),
        (["9lives"], "'9lives' is not a valid agent name"),
        (["taken"], "taken has files, but no Python file at its top\nhint: choose another name"),
        (["taken/file"], "taken/file is a file, and init takes a folder"),
    ],
)
def test_what_it_refuses(args: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "taken").mkdir()
    (folder / "taken" / "file").touch()
    assert main(["init", *args]) == 1
    assert says in capsys.readouterr().err
    assert [path.name for path in folder.rglob("*")] == ["taken", "file"]
