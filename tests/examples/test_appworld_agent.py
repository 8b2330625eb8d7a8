"""The parts of the AppWorld agent: worlds, apps, where code runs, tasks, payloads, and the diff in its README."""

from __future__ import annotations

import doctest
import json
import os
import sys
from itertools import islice
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from support.example import EXAMPLES, example, package

FOLDER = "strands_appworld_agent"
HOME = EXAMPLES / FOLDER
NAMES = ("apps", "appworld", "base", "builtin", "child", "payload", "tasks", "tool")
worlds = {name: package(FOLDER, f"worlds.{name}") for name in NAMES}
BuiltinWorld = worlds["builtin"].BuiltinWorld
read = worlds["payload"].WorldRequest.read


@pytest.mark.parametrize("name", NAMES)
def test_examples_in_docstrings_run(name: str) -> None:
    assert worlds[name].__doc__
    assert doctest.testmod(worlds[name]).failed == 0


def test_the_reward_is_the_evaluation() -> None:
    reward = example(f"{FOLDER}/reward.py")
    assert doctest.testmod(reward).failed == 0
    evaluation = worlds["base"].Evaluation
    for passed, failed, whole, partial in (
        (("a", "b"), (), 1.0, 1.0),
        (("a",), ("b", "c", "d"), 0.0, 0.25),
        ((), ("a",), 0.0, 0.0),
        ((), (), 0.0, 0.0),
    ):
        outcome = evaluation(passed=passed, failed=failed)
        assert reward.WorldReward()(evaluation=outcome) == whole
        assert reward.WorldReward(partial=True)(evaluation=outcome) == partial


# --- code in the built-in world ---------------------------------------------------------------------------------------


@pytest.fixture
def world() -> Any:
    with BuiltinWorld("debts-1") as world:
        yield world


def test_variables_and_functions_stay(world: Any) -> None:
    assert world.execute("x = 20\ndef double(n):\n    return 2 * n") == "Execution successful."
    assert world.execute("import math, json, datetime, collections, re\nprint(double(x), math.floor(2.5))") == "40 2\n"


def test_a_failure_shows_the_codes_own_lines(world: Any) -> None:
    world.execute("def read(n):\n    return apis.notes.show_note(note_id=n)")
    said = world.execute("print('before')\nread(99)")
    assert said.startswith("before\nExecution failed. Traceback:\n")
    assert 'File "<python-input-3>", line 2, in <module>\n    read(99)' in said
    assert "return apis.notes.show_note(note_id=n)" in said
    assert said.rstrip().endswith("ApiError: there is no note 99")
    assert "_shell.py" not in said
    assert "SyntaxError: '(' was never closed" in world.execute("x = (")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("open('/etc/passwd')", "'/etc/passwd' is out of reach"),
        (f"open({str(HOME / 'worlds' / 'tasks.py')!r}).read()", "is out of reach"),
        ("import os; os.listdir('/')", "'/' is out of reach"),
        ("import os; os.listdir()", "is out of reach"),
        ("open('x', 'w')", "'x' is out of reach"),
        ("import json; open(json.__file__, 'a')", "is out of reach"),
        ("import os; os.system('true')", "os.system is out of reach"),
        ("import os; os.fork()", "os.fork is out of reach"),
        ("import os; os.kill(os.getppid(), 0)", "os.kill is out of reach"),
        ("import os; os.remove('x')", "os.remove is out of reach"),
        ("import subprocess", "subprocess is out of reach"),
        ("import ctypes", "ctypes is out of reach"),
        ("import socket; socket.socket()", "socket.__new__ is out of reach"),
        ("x = bytearray(1 << 30)", "MemoryError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("input()", "EOFError"),
        ("apis.notes.show_note(1)", "APIs take keyword arguments only"),
        ("apis.weather.show()", "there is no API weather.show; see apis.api_docs.show_app_descriptions()"),
        ("apis.notes._find(note_id=11)", "there is no API notes._find"),
        ("apis.notes.apis()", "there is no API notes.apis"),
        ("apis.notes.show_note()", "missing a required argument: 'note_id'"),
        ("apis.notes.show_note(note_id=11, x=1)", "unexpected keyword argument 'x'"),
        ("apis.notes.search_notes(query=3)", "notes.search_notes: 'int' object has no attribute 'lower'"),
        ("for _ in range(1001): apis.supervisor.show_profile()", "more than 1000 API calls in one execution"),
    ],
)
def test_what_code_cant_do(code: str, why: str, world: Any) -> None:
    said = world.execute(code)
    assert said.startswith("Execution failed")
    assert why in said
    assert world.execute("print(1)") == "1\n"


def test_code_that_takes_too_long_or_ends_its_process_loses_its_variables() -> None:
    with BuiltinWorld("debts-1", timeout_seconds=2) as world:
        world.execute("x = 1; apis.notes.create_note(title='kept', content='')")
        assert world.execute("while True: pass") == (
            "Execution failed: it took more than 2 seconds. All variables are lost."
        )
        assert "NameError" in world.execute("x")
        assert "kept" in world.execute("print(apis.notes.search_notes(query='kept'))")
        assert "the interpreter ended" in world.execute("import os; os._exit(0)")
        assert world.execute("print(2)") == "2\n"
        assert "no JSON" in world.execute("apis.__dict__['_lines']._file.write(b'{\\n')")
        assert world.execute("apis.__dict__['_lines'].send({'x': 1})") == ""


def test_output_is_not_endless(world: Any) -> None:
    assert len(world.execute("print('x' * 10**6)")) < 21_000
    assert len(world.execute("print('x' * 10**6); 1 / 0")) < 41_000


def test_nothing_is_left_behind_by_a_world() -> None:
    world = BuiltinWorld("debts-1")
    world.execute(
        "import threading; threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()"
    )
    world.execute("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    folder, pid = world.execute("import os; print(os.getcwd(), os.getpid())").split()
    assert os.path.isdir(folder)
    world.close()
    assert not os.path.exists(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_the_state_is_not_in_the_codes_process(world: Any) -> None:
    assert world.execute("import gc; print([o for o in gc.get_objects() if 'balance' in str(type(o))])") == "[]\n"
    assert "worlds" not in world.execute("import sys; print([name for name in sys.modules if 'worlds' in name])")[:-1]
    world.execute("apis.supervisor.show_profile()['email'] = 'x@example.com'")
    assert "x@example.com" not in world.execute("print(apis.supervisor.show_profile())")


# --- the apps ---------------------------------------------------------------------------------------------------------


def calls(task_id: str = "debts-1") -> tuple[Any, Any]:
    state = worlds["tasks"].make_task(task_id).state
    return state, lambda path, **arguments: worlds["apps"].call_api(state, *path.split("."), arguments)


def test_the_apps_document_themselves() -> None:
    _, call = calls()
    assert [app["name"] for app in call("api_docs.show_app_descriptions")] == [
        "supervisor", "contacts", "notes", "payments",
    ]  # fmt: skip
    names = [api["name"] for api in call("api_docs.show_api_descriptions", app_name="notes")]
    assert names == ["create_note", "delete_note", "search_notes", "show_note", "update_note"]
    doc = call("api_docs.show_api_doc", app_name="payments", api_name="send_money")
    assert [(p["name"], p["required"]) for p in doc["parameters"]] == [
        ("access_token", True), ("email", True), ("amount", True), ("description", False),
    ]  # fmt: skip
    with pytest.raises(worlds["apps"].ApiFailure, match=r"there is no notes\.login"):
        call("api_docs.show_api_doc", app_name="notes", api_name="login")


def test_money_needs_a_login_a_person_and_a_balance() -> None:
    state, call = calls()
    refused = worlds["apps"].ApiFailure
    me = call("supervisor.show_profile")["email"]
    with pytest.raises(refused, match="invalid credentials"):
        call("payments.login", username=me, password="guess")
    password = call("supervisor.show_account_passwords")[0]["password"]
    token = call("payments.login", username=me, password=password)["access_token"]
    other, before = state.contacts[0]["email"], state.balance
    for arguments, why in (
        ({"access_token": "no", "email": other, "amount": 1}, "log in first"),
        ({"access_token": token, "email": "x@example.com", "amount": 1}, "nobody has the email"),
        ({"access_token": token, "email": other, "amount": 0}, "a whole number above 0"),
        ({"access_token": token, "email": other, "amount": True}, "a whole number above 0"),
        ({"access_token": token, "email": other, "amount": before + 1}, f"the balance is {before}"),
    ):
        with pytest.raises(refused, match=why):
            call("payments.send_money", **arguments)
    call("payments.send_money", access_token=token, email=other, amount=7)
    assert call("payments.show_balance", access_token=token) == {"balance": before - 7}


def test_lists_come_in_pages() -> None:
    state, call = calls()
    pages = [call("contacts.search_contacts", page_index=n) for n in range(4)]
    assert [len(page) for page in pages] == [5, 5, 1, 0]
    assert [contact for page in pages for contact in page] == state.contacts
    pages[0][0]["name"] = "changed"
    assert state.contacts[0]["name"] != "changed"
    with pytest.raises(worlds["apps"].ApiFailure, match="page_index is a whole number from 0"):
        call("contacts.search_contacts", page_index=-1)


# --- the tasks --------------------------------------------------------------------------------------------------------


def played(task: Any, code: tuple[str, ...]) -> Any:
    with BuiltinWorld(task.task_id) as world:
        said = [world.execute(part) for part in code]
        assert not any("Execution failed" in text for text in said), said
        assert world.completed() == bool(code)
        return world.evaluate()


@pytest.mark.parametrize("task", list(islice(worlds["tasks"].tasks("train", 2), 5)), ids=lambda task: task.task_id)
def test_a_task_is_solved_by_its_solution_and_not_by_its_mistake(task: Any) -> None:
    assert played(task, task.solution).failed == ()
    assert played(task, task.wrong).failed
    assert played(task, ()).failed


def test_doing_more_than_was_asked_is_a_failure() -> None:
    task = worlds["tasks"].make_task("shopping-4")
    more = "apis.notes.create_note(title='more', content='')\n"
    assert played(task, (more, *task.solution)).failed == ("the item is ticked off, and nothing else",)
    gone = "apis.notes.delete_note(note_id=11)\n"
    assert played(task, (gone, *task.solution)).failed == ("the item is ticked off, and nothing else",)


def test_a_tasks_name_says_all_of_it() -> None:
    make_task = worlds["tasks"].make_task
    assert make_task("dinner-12").row == make_task("dinner-12").row
    assert make_task("dinner-12").state == make_task("dinner-12").state
    assert make_task("dinner-12").state != make_task("dinner-13").state
    for name in ("dinner", "dinner-x", "golf-1", ""):
        with pytest.raises(ConfigError, match="there is no built-in task"):
            make_task(name)


def test_train_and_held_out_tasks_are_disjoint() -> None:
    tasks = worlds["tasks"].tasks
    seen = {s: {t.task_id for seed in range(2) for t in islice(tasks(s, seed), 50)} for s in ("train", "held-out")}
    assert not seen["train"] & seen["held-out"]
    assert len(seen["train"]) == len(seen["held-out"]) == 100


def test_the_rows_are_what_prepare_makes(capsys: pytest.CaptureFixture[str]) -> None:
    assert example(f"{FOLDER}/prepare.py").main(["builtin", "held-out", "5"]) == 0
    made = capsys.readouterr().out
    assert made == (HOME / "rows.jsonl").read_text()
    assert [set(json.loads(line)) for line in made.splitlines()] == [{"prompt", "task_id", "world"}] * 5


# --- payloads, and AppWorld where it isn't installed ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({}, "payload.task_id Field required"),
        ({"task_id": 7}, "payload.task_id Input should be a valid string"),
        ({"task_id": "../x"}, "payload.task_id String should match pattern"),
        ({"task_id": "a/b"}, "payload.task_id String should match pattern"),
        ({"task_id": "a\n"}, "payload.task_id String should match pattern"),
        ({"task_id": "a", "world": "mine"}, "payload.world Input should be 'appworld' or 'builtin'"),
        ({"task_id": "a", "prompt": 7}, "payload.prompt is a int; only text is taken"),
        ({"task_id": "a", "prompt": ["hi"]}, "payload.prompt is a list; only text is taken"),
        ({"task_id": "a", "prompt": [{"toolUse": {}}]}, "payload.prompt has tool-use blocks"),
        ({"task_id": "a", "prompt": {"type": "tool_result"}}, "payload.prompt has tool-use blocks"),
        ([], "payload Input should be a valid dictionary"),
    ],
)
def test_payloads_are_refused_with_the_place_of_what_is_wrong(payload: Any, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(payload)
    assert str(caught.value).startswith(why), str(caught.value)


def test_a_request_says_which_world() -> None:
    assert read({"task_id": "82e2fac_1", "more": 1}).world == "appworld"
    assert read({"task_id": "debts-1", "world": "builtin", "prompt": "Do it."}).prompt == "Do it."


def test_without_appworld_it_is_said_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APPWORLD_PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("APPWORLD_ROOT", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"AppWorld's interpreter .*/python does not exist\nhint: set it up as README"
    ):
        worlds["appworld"].AppWorldWorld("82e2fac_1")
    monkeypatch.setenv("APPWORLD_PYTHON", sys.executable)
    with pytest.raises(ConfigError, match=r"AppWorld's data is not in .*/data"):
        worlds["appworld"].AppWorldWorld("82e2fac_1")
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigError, match="AppWorld: ModuleNotFoundError: No module named 'appworld'"):
        worlds["appworld"].AppWorldWorld("82e2fac_1")
    assert example(f"{FOLDER}/prepare.py").main(["appworld", "train"]) == 1
    assert "error: AppWorld: ModuleNotFoundError" in capsys.readouterr().err
