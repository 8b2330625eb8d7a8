"""`agentcore-rl init` in a folder that has an agent: it adds what is missing, and changes nothing."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.rollout import run_rollouts
from support.agent import SESSION_HEADER, run_agent
from support.gateway import gateway, ids, text_of
from support.scripted_model import ScriptedModel

AGENT = '''"""As its owner wrote it: a client that is built on import, and a hard-coded model."""
from openai import OpenAI
from bedrock_agentcore.runtime import BedrockAgentCoreApp

app = BedrockAgentCoreApp()
client = OpenAI()


@app.entrypoint
{define} answer({parameters}):
    messages = [{{"role": "user", "content": payload["question"]}}]
    reply = client.chat.completions.create(model="gpt-4.1", messages=messages)
    return reply.choices[0].message.content


if __name__ == "__main__":
    app.run()
'''


def write(folder: Path, define: str = "def", parameters: str = "payload") -> Path:
    folder.mkdir()
    (folder / "main.py").write_text(AGENT.format(define=define, parameters=parameters))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(("define", "parameters"), [("def", "payload"), ("async def", "payload, context")])
def test_an_agent_with_a_client_built_on_import_runs_unchanged_and_each_session_calls_its_own_url(
    tmp_path: Path, define: str, parameters: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "agent", define, parameters)
    before = contents(folder)
    assert main(["init", str(folder)]) == 0
    written = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert written == ["rl_app.py", "reward.py", ".dockerignore", "Dockerfile", "requirements.txt"]
    assert {name: contents(folder)[name] for name in before} == before

    def say(request: SampleRequest) -> Sequence[int]:
        return ids(f"It is {text_of(request.prompt).split('question ')[1][0]}.")

    rows = [{"question": f"question {n}", "answer": str(n)} for n in (3, 4)]
    with (
        gateway(ScriptedEngine(say)) as running,
        RolloutClient(str(folder), str(tmp_path / "results"), "own") as client,
    ):
        groups = list(run_rollouts(rows, 2, client=client, gateway=running, timeout=60))
    for group in groups:
        assert [(r.reward, r.fidelity.turns, r.error) for r in group.rollouts] == [(1.0, 1, None)] * 2
    after = contents(folder)
    assert main(["init", str(folder)]) == 0
    assert capsys.readouterr().out == ""
    assert contents(folder) == after


STREAMING = """from openai import AsyncOpenAI
from bedrock_agentcore.runtime import BedrockAgentCoreApp

app = BedrockAgentCoreApp()


@app.entrypoint
async def answer(payload, context):
    messages = [{"role": "user", "content": payload["question"]}]
    reply = await AsyncOpenAI().chat.completions.create(model="gpt-4.1", messages=messages)
    yield {"started": context.session_id}
    for word in reply.choices[0].message.content.split():
        yield {"data": word + " "}
"""


@pytest.mark.parametrize(
    ("yielded", "key", "says"),
    [
        ('{"delta": "a"}\n    yield {"answer": "a"}', "answer", "Look at reward.py"),
        ('{"delta": "a"}', "delta", "Look at reward.py"),
        ('{"data": "a", "text": "a"}', "data", "Look at reward.py"),
        ('{"said": "a"}', "data", "It finds no text in 'said' of what the agent yields: name the key"),
    ],
)
def test_the_text_of_dicts_that_an_agent_yields_is_found(
    tmp_path: Path, yielded: str, key: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text(f"@app.entrypoint\ndef f(payload):\n    yield {yielded}\n")
    assert main(["init", str(tmp_path)]) == 0
    assert says in (err := capsys.readouterr().err)
    assert ("It finds no text" in err) == (says[:2] == "It")
    assert f'part.get("{key}", "")' in (tmp_path / "rl_app.py").read_text()


def test_an_agent_that_streams_is_judged_by_its_whole_text_and_streams_in_production(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "main.py").write_text(STREAMING)
    (folder / "rows.jsonl").write_text('{"question": "question 3", "expected": "3"}\n')
    assert main(["init", str(folder)]) == 0
    say = ScriptedEngine(lambda request: ids("It is 3."))
    with gateway(say) as running, RolloutClient(str(folder), str(tmp_path / "results"), "own") as client:
        rows = [{"question": "question 3", "expected": "3"}]
        (group,) = run_rollouts(rows, 1, client=client, gateway=running, timeout=60)
    (rollout,) = group.rollouts
    assert (rollout.reward, rollout.error) == (1.0, None)
    assert rollout.result is not None
    assert rollout.result["response"] == "It is 3. "

    app = (folder / "rl_app.py").read_text()
    (folder / "rl_app.py").write_text(app.replace("app.run()", "import os; app.run(port=int(os.environ['PORT']))"))
    with (
        ScriptedModel(lambda body: {"content": "It is 42"}).serving() as model,
        run_agent(folder / "rl_app.py", tmp_path, OPENAI_BASE_URL=model.base_url, OPENAI_API_KEY="mine") as served,
    ):
        headers = {"Content-Type": "application/json", SESSION_HEADER: str(uuid.uuid4())}
        status, events = served.request("POST", "/invocations", b'{"question": "what?"}', headers)
    assert (status, events.count(b"data: "), b'"42 "' in events) == (200, 4, True), events


@pytest.mark.parametrize(
    ("returned", "row", "text", "truth"),
    [
        ('{"answer": text, "id": "77"}', {"expected": "1"}, 'answer["answer"]', "expected"),
        ("text", {"question": "?", "answer": "1"}, "answer", "answer"),
        ('{"cost": 1, "result": text}', {"question": "?"}, 'answer["result"]', "answer"),
        ('{"reply": text, "session": "77"}', {"answer": "1"}, 'answer["reply"]', "answer"),
        ('{"cost": 1}', ["no", "object"], "answer", "answer"),
    ],
)
def test_the_reward_gets_the_text_and_the_truth(
    tmp_path: Path, returned: str, row: object, text: str, truth: str
) -> None:
    (tmp_path / "main.py").write_text(f"@app.entrypoint\ndef f(payload):\n    text = ''\n    return {returned}\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["init", str(tmp_path)]) == 0
    said = f'reward_fn(response_text=str({text}), ground_truth=payload["{truth}"])'
    assert said in (tmp_path / "rl_app.py").read_text()


def test_an_answer_without_a_usual_key_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "main.py").write_text('@app.entrypoint\ndef f(payload):\n    return {"said": "", "session": 7}\n')
    assert main(["init", str(tmp_path)]) == 0
    assert "It judges the whole answer, not one of 'said', 'session': name the key" in capsys.readouterr().err


AGENT_OF_ORDERS = """@app.entrypoint
def f(payload):
    return read(payload["order"])
"""


@pytest.mark.parametrize(
    ("name", "text", "field", "said"),
    [
        ("rows.csv", "order,expected\n7,8\n", "expected", "compares answers with 'expected' of the rows in rows.csv."),
        ("rows.json", '[{"order": 7, "total": 8}]', "total", "compares answers with 'total' of the rows in rows.json."),
        ("rows.csv", "order,a,b\n7,8,9\n", "answer", "not in rows.csv, which has 'order', 'a', 'b'): name the right"),
        ("notes.txt", "order,total\n7,8\n", "answer", "a guess, because there are no rows here): name the right"),
    ],
)
def test_the_truth_is_a_field_that_the_agent_never_reads_and_init_says_which(
    tmp_path: Path, name: str, text: str, field: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text(AGENT_OF_ORDERS)
    (tmp_path / name).write_text(text)
    assert main(["init", str(tmp_path)]) == 0
    assert f'ground_truth=payload["{field}"]' in (tmp_path / "rl_app.py").read_text()
    assert said in (err := capsys.readouterr().err)
    assert f"Next: agentcore-rl doctor {tmp_path} --model tiny\n" in err


@pytest.mark.parametrize(
    ("name", "text"), [("orders.csv", "order,total\n7,8\n"), ("questions.json", '[{"order": 7, "total": 8}]')]
)
def test_the_next_command_names_the_data(
    tmp_path: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text(AGENT_OF_ORDERS)
    (tmp_path / name).write_text(text)
    assert main(["init", str(tmp_path)]) == 0
    command = f"Next: agentcore-rl doctor {tmp_path} --model tiny --data {tmp_path}/{name}\n"
    assert command in capsys.readouterr().err


def test_a_package_that_shares_a_namespace_comes_with_the_one_it_needs(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "from langgraph.prebuilt import create_react_agent\n@app.entrypoint\ndef f(payload): ...\n"
    )
    assert main(["init", str(tmp_path)]) == 0
    listed = [line.partition(">=")[0] for line in (tmp_path / "requirements.txt").read_text().split()]
    assert listed == ["agentcore-rl-toolkit", "langgraph-prebuilt", "langgraph"]


def test_it_serves_production_with_the_variables_of_its_own_client(tmp_path: Path) -> None:
    folder = write(tmp_path / "agent")
    assert main(["init", str(folder)]) == 0
    app = (folder / "rl_app.py").read_text()
    (folder / "rl_app.py").write_text(app.replace("app.run()", "import os; app.run(port=int(os.environ['PORT']))"))
    with (
        ScriptedModel(lambda body: {"content": f"{body['model']} says 42"}).serving() as model,
        run_agent(folder / "rl_app.py", tmp_path, OPENAI_BASE_URL=model.base_url, OPENAI_API_KEY="mine") as running,
    ):
        status, answer = running.invoke({"question": "what?"})
    assert (status, answer) == (200, "gpt-4.1 says 42")


def test_packages_and_container_are_the_agents_own(tmp_path: Path) -> None:
    folder = write(tmp_path / "agent")
    (folder / "helper.py").write_text("import httpx, json, helper_of_mine\n")
    (folder / "helper_of_mine.py").write_text("")
    assert main(["init", str(folder)]) == 0
    listed = (folder / "requirements.txt").read_text().split()
    assert [line.partition(">=")[0] for line in listed] == [
        "agentcore-rl-toolkit",
        "bedrock-agentcore",
        "httpx",
        "openai",
    ]
    assert "-r wheels/requirements.txt" in (folder / "Dockerfile").read_text()

    other = write(tmp_path / "other")
    (other / "pyproject.toml").write_text("[project]\nname = 'other'\nversion = '1'\n")
    assert main(["init", str(other)]) == 0
    assert not (other / "requirements.txt").exists()
    assert "pip install --find-links wheels ./wheels 'agentcore-rl-toolkit>=0.3'" in (other / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("code", "more", "said"),
    [
        ("def answer(payload): ...\n", [], "a function with @app.entrypoint, and found none\nhint: name the function"),
        ("@a.entrypoint\ndef f(p): ...\n@a.entrypoint\ndef g(p): ...\n", [], "and found 2 of them"),
        ("def f(:\n", [], "main.py can't be read as Python"),
        (
            "def answer(payload): ...\n",
            ["--entrypoint", "main.py:nothing"],
            "the function main.py:nothing, and found none",
        ),
        ("def answer(payload): ...\n", ["--framework", "openai"], "has an agent, so --framework has no effect"),
        (
            "app = BedrockAgentCoreApp()\n@app.entrypoint\ndef f(p): ...\napp.run()\n",
            [],
            "line 4 of main.py starts the server when it is imported\nhint: put it below",
        ),
    ],
)
def test_an_agent_that_init_does_not_understand_gets_no_file(
    tmp_path: Path, code: str, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text(code)
    assert main(["init", str(tmp_path), *more]) == 1
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["main.py"]


def test_the_entrypoint_can_be_named_and_the_agents_code_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("raise SystemExit('it ran')\ndef answer(payload): ...\n")
    assert main(["init", str(tmp_path), "--entrypoint", "main.py:answer"]) == 0
    assert "from main import answer" in (tmp_path / "rl_app.py").read_text()
    assert json.dumps("it ran")[1:-1] in (tmp_path / "main.py").read_text()


def test_another_entrypoint_than_the_one_that_is_wrapped_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text("def solve(task): ...\ndef answer(payload): ...\n")
    for _ in range(2):
        assert main(["init", str(tmp_path), "--entrypoint", "main.py:solve"]) == 0
    assert main(["init", str(tmp_path), "--entrypoint", "main.py:answer"]) == 1
    assert "rl_app.py exists, and doesn't import answer of main.py\nhint: leave it out" in capsys.readouterr().err


def test_code_below_a_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tmp_path / "project" / "src" / "clinic"
    code.mkdir(parents=True)
    for name in ("__init__.py", "agent.py"):
        (code / name).write_text("def answer(payload): ...\n")
    assert main(["init", str(tmp_path / "project")]) == 1
    assert "name its function: --entrypoint src/clinic/agent.py:FUNCTION\n" in capsys.readouterr().err


def test_an_agent_in_a_package_imports_relative_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tmp_path / "my project" / "clinic"
    code.mkdir(parents=True)
    (code / "db.py").write_text("def look_up(payload):\n    return f'It is {payload[\"n\"]}'\n")
    agent = "from .db import look_up\n\n@app.entrypoint\ndef answer(payload):\n    return look_up(payload)\n"
    (code / "agent.py").write_text(agent)
    assert main(["init", str(code)]) == 1
    assert f"init {os.path.relpath(code.parent)} --entrypoint clinic/agent.py:answer\n" in capsys.readouterr().err
    (code / "agent.py").write_text(agent.replace("@app.entrypoint\n", ""))
    assert main(["init", str(code.parent), "--entrypoint", "clinic/agent.py:answer"]) == 0
    assert f"agentcore-rl doctor '{code.parent}' --model tiny\n" in capsys.readouterr().err
    with RolloutClient(str(code.parent), str(tmp_path / "results"), "own") as client:
        (item,) = client.run_batch([{"n": 3, "answer": "3"}], timeout=60)
    assert (item.error, item.result and item.result["rewards"]) == (None, 1.0)


NESTED = """@app.entrypoint
def f(payload{parameter}):
    def look_up(order):
        {inner}
    return "It is " + payload["n"]
"""


@pytest.mark.parametrize("inner", ['return {"status": "success", "content": order}', "yield order"])
def test_a_function_within_the_entrypoint_says_nothing_about_its_answer(tmp_path: Path, inner: str) -> None:
    (tmp_path / "main.py").write_text(NESTED.format(inner=inner, parameter=""))
    assert main(["init", str(tmp_path)]) == 0
    assert (
        'return {"response": answer, "rewards": reward_fn(response_text=str(answer),'
        in (tmp_path / "rl_app.py").read_text()
    )


@pytest.mark.parametrize(
    ("parameter", "call"),
    [
        (", verbose=False", "f(payload)"),
        (", context=None", "f(payload, context)"),
        (", session", "f(payload, context)"),
    ],
)
def test_a_second_argument_is_the_context_if_agentcore_would_pass_it(tmp_path: Path, parameter: str, call: str) -> None:
    (tmp_path / "main.py").write_text(NESTED.format(inner="pass", parameter=parameter))
    assert main(["init", str(tmp_path)]) == 0
    assert f"answer = {call}\n" in (tmp_path / "rl_app.py").read_text()


def test_the_packages_of_a_module_that_the_agent_imports_are_listed(tmp_path: Path) -> None:
    code = tmp_path / "clinic"
    (code / "tables").mkdir(parents=True)
    (tmp_path / "main.py").write_text("import clinic.db\n@app.entrypoint\ndef f(payload): ...\n")
    (code / "db.py").write_text("def connect():\n    from .tables import visits\n")
    (code / "tables" / "__init__.py").write_text("")
    (code / "tables" / "visits.py").write_text("import httpx\nfrom ..db import connect\n")
    (code / "unused.py").write_text("import openai\n")
    assert main(["init", str(tmp_path)]) == 0
    listed = [line.partition(">=")[0] for line in (tmp_path / "requirements.txt").read_text().split()]
    assert listed == ["agentcore-rl-toolkit", "httpx"]


def test_the_entrypoint_is_a_file_in_the_folder_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("agent", "shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent.py").write_text("def answer(payload): ...\n")
    monkeypatch.chdir(tmp_path)
    assert main(["init", "agent", "--entrypoint", "../shared/agent.py:answer"]) == 1
    assert "--entrypoint ../shared/agent.py:answer is not in agent\nhint: name the folder" in capsys.readouterr().err
    assert main(["init", "agent", "--entrypoint", f"{tmp_path}/agent/agent.py:answer"]) == 0
    assert "from agent import answer" in (tmp_path / "agent" / "rl_app.py").read_text()


@pytest.mark.parametrize(
    ("file", "helper", "imported"),
    [
        ("src/clinic/agent.py", "src/clinic/db.py", "from clinic.db import look_up"),
        ("service/agent.py", "service/db.py", "from db import look_up"),
        ("customer-agent.py", "db.py", "from db import look_up"),
    ],
)
def test_an_agent_runs_from_where_its_own_imports_start_and_under_any_name(
    tmp_path: Path, file: str, helper: str, imported: str
) -> None:
    folder = tmp_path / "project"
    (folder / file).parent.mkdir(parents=True)
    (folder / helper).write_text("def look_up(payload):\n    return f'It is {payload[\"n\"]}'\n")
    (folder / file).write_text(f"{imported}\n\ndef answer(payload):\n    return look_up(payload)\n")
    assert main(["init", str(folder), "--entrypoint", f"{file}:answer"]) == 0
    with RolloutClient(str(folder), str(tmp_path / "results"), "own") as client:
        (item,) = client.run_batch([{"n": 3, "answer": "3"}], timeout=60)
    assert (item.error, item.result and item.result["rewards"]) == (None, 1.0)


@pytest.mark.parametrize(
    ("own", "imported", "more"),
    [
        ("class Polite(RewardFunction): ...\n", "from reward import Polite", []),
        ("def points_of(customer): ...\n", "from rl_reward import MathReward", ["rl_reward.py"]),
    ],
)
def test_a_reward_that_exists_is_used_if_it_is_one(
    tmp_path: Path, own: str, imported: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "main.py").write_text("@app.entrypoint\ndef f(payload): ...\n")
    (tmp_path / "reward.py").write_text(own)
    assert main(["init", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert [Path(line).name for line in printed.out.splitlines()][:-3] == ["rl_app.py", *more]
    assert f"Look at {[*more, 'reward.py'][0]}: it decides" in printed.err
    assert imported in (tmp_path / "rl_app.py").read_text()
    assert main(["init", str(tmp_path)]) == 0
    assert "Nothing is missing." in capsys.readouterr().err


def test_a_file_is_answered_with_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "agent")
    assert main(["init", str(folder / "main.py")]) == 1
    assert f"hint: agentcore-rl init {folder} --entrypoint main.py:FUNCTION" in capsys.readouterr().err


def test_every_model_is_looked_up_before_the_first_one_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "a"}\n')
    given = ["eval", str(tmp_path), "--data", str(tmp_path / "rows.jsonl"), "--model", "tiny", "--model", "./nowhere"]
    assert main(given) == 1
    printed = capsys.readouterr().err
    assert "no model found at ./nowhere" in printed
    assert "loading" not in printed
