"""The parts of the office agent: workspace, tools, checks, tasks, payloads, converter, and the diff in its README."""

from __future__ import annotations

import base64
import doctest
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import icalendar
import openpyxl
import pytest

from agentcore_rl_toolkit.errors import ConfigError
from support.example import EXAMPLES, example, package

FOLDER = "strands_officebench_agent"
HOME = EXAMPLES / FOLDER
PARTS = ("archive", "calendar", "checks", "content", "convert", "evaluation", "excel", "kinds", "mail", "payload")
office = {name: package(FOLDER, f"office.{name}") for name in (*PARTS, "pdf", "tasks", "tools", "word", "workspace")}
Workspace, OfficeError = office["workspace"].Workspace, office["workspace"].OfficeError
read = office["payload"].OfficeRequest.read


def tools_of(workspace: Any) -> dict[str, Any]:
    return {made.tool_name: made for made in office["tools"].office_tools(workspace)}


def judge(row: dict[str, Any], calls: list[Any]) -> list[dict[str, Any]]:
    """What the checks say after these tool calls."""
    request = read(row)
    with Workspace(request.files) as workspace:
        tools = tools_of(workspace)
        for name, arguments in calls:
            tools[name](**arguments)
        return list(office["evaluation"].evaluate(request, workspace))


def outcome(check: dict[str, Any], files: dict[str, Any], after: dict[str, Any], **more: Any) -> str:
    """Why a check fails, if the files at the start became those after."""
    row = {"prompt": "x", "files": files, "checks": [check]} | more
    request = read(row)
    with Workspace(after) as workspace:
        return str(office["evaluation"].evaluate(request, workspace)[0].get("why", ""))


@pytest.mark.parametrize("name", sorted(office))
def test_examples_in_docstrings_run(name: str) -> None:
    assert office[name].__doc__
    assert doctest.testmod(office[name]).failed == 0


def test_the_reward_needs_every_check() -> None:
    reward = example(f"{FOLDER}/reward.py")
    assert doctest.testmod(reward).failed == 0
    reward_fn = reward.OfficeReward()
    passed, failed = {"passed": True}, {"passed": False}
    assert [reward_fn(outcomes=o) for o in ([passed, passed], [passed, failed], [failed], [])] == [1.0, 0.0, 0.0, 0.0]


# --- the workspace ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "data/../../x", "data/..", "", "a\0b", "..\\x", "~/../.."])
def test_names_that_lead_out_of_the_workspace_are_refused(name: str) -> None:
    with Workspace({"data/a.txt": "x"}) as workspace:
        for use in (workspace.path, workspace.existing, workspace.new):
            with pytest.raises(OfficeError, match="is not a path inside the workspace"):
                use(name)


def test_links_are_refused_wherever_they_lead(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    with Workspace({"data/a.txt": "x"}) as workspace:
        (workspace.root / "file.txt").symlink_to(tmp_path / "secret.txt")
        (workspace.root / "folder").symlink_to(tmp_path)
        (workspace.root / "inside.txt").symlink_to(workspace.root / "data" / "a.txt")
        for name in ("file.txt", "folder/secret.txt", "folder/new.txt", "inside.txt"):
            for use in (workspace.existing, workspace.new):
                with pytest.raises(OfficeError, match="leads through a symbolic link"):
                    use(name)
        tools = tools_of(workspace)
        with pytest.raises(OfficeError, match="symbolic link"):
            tools["file_read"](file="folder/secret.txt")
        with pytest.raises(OfficeError, match="symbolic link"):
            tools["pdf_write"](file="folder/x.pdf", text="x")
    assert sorted(os.listdir(tmp_path)) == ["secret.txt"]


def test_a_workspace_is_gone_afterwards_and_after_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Workspace({"data/a.txt": "x"}) as workspace:
        assert workspace.files() == ["data/a.txt"]
    with pytest.raises(OfficeError):
        Workspace({"data/a.txt": "x", "../b.txt": "x"})
    with pytest.raises(OfficeError, match="a file is where a folder would have to be"):
        Workspace({"data": "x", "data/b.txt": "x"})
    with pytest.raises(OfficeError, match="is a folder"):
        Workspace({"data/b.txt": "x", "data": "x"})
    assert os.listdir(tmp_path) == []


def packed_zip(members: dict[str, str], link: str | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = 0o120777 << 16
            archive.writestr(info, "/etc/passwd")
    return out.getvalue()


def packed_tar(members: dict[str, str], kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            info.size = len(text) if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (packed_zip({"ok.txt": "x", "/etc/cron.d/x": "x"}), "'/etc/cron.d/x' would leave its folder"),
        (packed_zip({"ok.txt": "x", "../x": "x"}), "'../x' would leave its folder"),
        (packed_zip({"ok.txt": "x", "a/../../x": "x"}), "would leave its folder"),
        (packed_zip({"ok.txt": "x", "C:\\x": "x"}), "would leave its folder"),
        (packed_zip({"ok.txt": "x"}, link="link"), "'link' is a link or a device"),
        (packed_tar({"/abs.txt": "x"}), "'/abs.txt' would leave its folder"),
        (packed_tar({"ok.txt": "x", "../x": "x"}), "'../x' would leave its folder"),
        (packed_tar({"link": ""}, tarfile.SYMTYPE), "'link' is a link or a device"),
        (packed_tar({"link": ""}, tarfile.LNKTYPE), "'link' is a link or a device"),
        (packed_tar({"pipe": ""}, tarfile.FIFOTYPE), "'pipe' is a link or a device"),
        (packed_zip({f"{n}.txt": "" for n in range(1002)}), "more than 64 MB or 1000 files"),
        (packed_zip({"ok.txt": "x"})[:-30], "neither a zip nor a tar archive"),
        (packed_tar({"ok.txt": "x" * 5000})[:60], "neither a zip nor a tar archive|can't be read"),
        (b"hello", "neither a zip nor a tar archive"),
    ],
)
def test_archives_that_would_leave_the_workspace_are_refused_whole(data: bytes, why: str) -> None:
    with Workspace({"a.bin": {"base64": base64.b64encode(data).decode()}}) as workspace:
        with pytest.raises(OfficeError, match=why):
            tools_of(workspace)["file_extract"](archive="a.bin", folder="out")
        assert workspace.files() == ["a.bin"]


def test_an_archive_that_is_too_large_is_refused() -> None:
    with Workspace() as workspace:
        path = workspace.new("bomb.zip")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros", bytes(2 << 20))
        with pytest.raises(ValueError, match="more than 1 MB"):
            office["archive"].read_archive(path, 1 << 20)


@pytest.mark.parametrize(
    "data", [packed_zip({"a.txt": "1", "b/c.txt": "2"}), packed_tar({"a.txt": "1", "b/c.txt": "2"})]
)
def test_an_archive_is_unpacked_where_it_is_asked_for(data: bytes) -> None:
    with Workspace({"a.bin": {"base64": base64.b64encode(data).decode()}}) as workspace:
        extract = tools_of(workspace)["file_extract"]
        assert extract(archive="a.bin", folder="out/") == "out/a.txt\nout/b/c.txt"
        assert (workspace.root / "out/b/c.txt").read_text() == "2"
        with pytest.raises(OfficeError, match="not a path inside"):
            extract(archive="a.bin", folder="../out")


# --- the tools --------------------------------------------------------------------------------------------------------


def test_calendars_are_real_and_keep_what_they_have() -> None:
    start = {"summary": "old", "start": "2025-03-03T09:00:00", "end": "2025-03-03T10:00:00"}
    with Workspace({"calendar/Ada.ics": [start]}) as workspace:
        tools = tools_of(workspace)
        event = {"user": "Ada", "summary": "new", "start": "2025-03-03 08:00", "end": "2025-03-03 08:30"}
        tools["calendar_create"](**event)
        tools["calendar_create"](**event | {"user": "Ben@example.com"})
        assert tools["calendar_list"](user="Ada").splitlines() == [
            "2025-03-03 08:00:00 to 2025-03-03 08:30:00: new",
            "2025-03-03 09:00:00 to 2025-03-03 10:00:00: old",
        ]
        parsed = icalendar.Calendar.from_ical((workspace.root / "calendar/Ben.ics").read_bytes())
        assert [str(part["SUMMARY"]) for part in parsed.walk("VEVENT")] == ["new"]
        assert tools["calendar_delete"](user="Ada", summary="old") == "removed 1 events named 'old'"
        assert "old" not in tools["calendar_list"](user="Ada")
        with pytest.raises(OfficeError, match="before it starts"):
            tools["calendar_create"](**event | {"end": "2025-03-03 07:00"})
        with pytest.raises(OfficeError, match="'noon' is no time; write it like"):
            tools["calendar_create"](**event | {"end": "noon"})
        with pytest.raises(OfficeError, match="not a path inside"):
            tools["calendar_create"](**event | {"user": "../Ada"})


def test_mail_reaches_both_folders_with_its_attachment() -> None:
    with Workspace({"data/a.pdf": ["hello"]}) as workspace:
        tools = tools_of(workspace)
        message = {
            "sender": "Ada",
            "recipient": "Ben@example.com",
            "subject": "Re: offer 1/2\nX-Bad: 1",
            "body": "Hi\n",
        }
        tools["email_send"](**message, attachment="data/a.pdf")
        (name,) = (name for name in workspace.files() if name.startswith("emails/Ben/"))
        assert "emails/Ada/" in "".join(workspace.files())
        text = tools["email_read"](file=name)
        assert "From: Ada@example.com\nTo: Ben@example.com\nSubject: Re: offer 1/2 X-Bad: 1" in text
        assert "Attachment: a.pdf" in text
        assert text.endswith("Hi\n")
        assert tools["email_list"](user="Ben") == f"{name}: From: Ada@example.com, Subject: Re: offer 1/2 X-Bad: 1"
        assert tools["email_save_attachments"](file=name, folder="in") == "in/a.pdf"
        assert tools["pdf_read"](file="in/a.pdf") == "hello"
        with pytest.raises(OfficeError, match="not a path inside"):
            tools["email_send"](**message | {"recipient": "../../Ben"})


def test_workbooks_documents_and_pdfs() -> None:
    with Workspace({"data/t.xlsx": [["name", "n"], ["Ada", 1]], "data/d.docx": ["one"]}) as workspace:
        tools = tools_of(workspace)
        tools["excel_set_cell"](file="data/t.xlsx", row=2, column=2, value="2.5")
        assert tools["excel_read"](file="data/t.xlsx") == "(1, 1): name\t(1, 2): n\n(2, 1): Ada\t(2, 2): 2.5"
        assert openpyxl.load_workbook(workspace.root / "data/t.xlsx").active["B2"].value == 2.5
        tools["excel_set_cell"](file="data/t.xlsx", row=2, column=2, value="")
        assert "(2, 2)" not in tools["excel_read"](file="data/t.xlsx")
        with pytest.raises(ValueError, match="there is no sheet 'X'; there is: Sheet"):
            tools["excel_read"](file="data/t.xlsx", sheet="X")
        tools["excel_to_pdf"](file="data/t.xlsx", pdf_file="out/t.pdf")
        assert "Ada" in tools["pdf_read"](file="out/t.pdf")
        tools["word_append"](file="data/d.docx", text="two\nthree")
        assert tools["word_read"](file="data/d.docx") == "one\ntwo\nthree"
        tools["word_to_pdf"](file="data/d.docx", pdf_file="d.pdf")
        assert tools["pdf_read"](file="d.pdf").split() == ["one", "two", "three"]
        tools["pdf_write"](file="long.pdf", text="“word” – " + "word " * 3000)
        assert tools["pdf_read"](file="long.pdf").split().count("word") == 3000
        with pytest.raises(ValueError, match="the PDF's font has no '語'"):
            tools["pdf_write"](file="x.pdf", text="日本語"[2:])
        with pytest.raises(OfficeError, match=r"there is no file 'data/x.pdf'; there is: d.pdf, data/d.docx, "):
            tools["pdf_read"](file="data/x.pdf")


@pytest.mark.parametrize(
    ("tool", "arguments", "why"),
    [
        ("word_write", {"file": "a.txt", "text": "x"}, "has to end in .docx"),
        ("pdf_write", {"file": "a.docx", "text": "x"}, "has to end in .pdf"),
        ("excel_create", {"file": "a.pdf", "rows": []}, "has to end in .xlsx"),
        ("file_write", {"file": "a.xlsx", "text": "x"}, "use the tools of its app"),
        ("file_delete", {"file": "a.txt"}, "there is no file"),
    ],
)
def test_a_file_is_what_its_name_says(tool: str, arguments: dict[str, Any], why: str) -> None:
    with Workspace() as workspace, pytest.raises(OfficeError, match=why):
        tools_of(workspace)[tool](**arguments)


def test_what_is_read_is_not_endless() -> None:
    with Workspace({"a.txt": "x" * 30_000}) as workspace:
        assert tools_of(workspace)["file_read"](file="a.txt").endswith("… 10000 more characters")


# --- the checks -------------------------------------------------------------------------------------------------------

EVENTS: Callable[..., Any] = lambda *hours: [  # noqa: E731
    {"summary": "e", "start": f"2025-03-03T{a:02}:00:00", "end": f"2025-03-03T{b:02}:00:00"} for a, b in hours
]
APART = {"check": "no_overlap", "username": "Ada"}
CONTAIN = {"check": "contain", "file": "a.txt", "keywords": ["Ada", "1200"]}
CELLS = {"check": "cells", "file": "t.xlsx", "cells": [{"row": 2, "column": 1, "values": ["3", "4"]}]}
UNREADABLE = "can't be read: BadZipFile: File is not a zip file"
MAIL = {"from": "Ada", "to": "Ben", "subject": "s", "body": "the word"}


@pytest.mark.parametrize(
    ("check", "after", "why"),
    [
        (CONTAIN, {"a.txt": "ada has 1,200"}, ""),
        (CONTAIN, {"a.txt": "ada has 1,201"}, "'1200' is missing"),
        (CONTAIN, {}, "there is no a.txt"),
        (CONTAIN | {"file": "a.docx"}, {"a.docx": ["Ada", "1200"]}, ""),
        (CONTAIN | {"file": "a.pdf"}, {"a.pdf": ["Ada: 1200"]}, ""),
        (CONTAIN | {"file": "a.xlsx"}, {"a.xlsx": [["Ada", 1200]]}, ""),
        (CONTAIN | {"file": "a.xlsx"}, {"a.xlsx": {"base64": "aGVsbG8="}}, UNREADABLE),
        (CONTAIN | {"check": "not_contain"}, {"a.txt": "Ada"}, ""),
        (CONTAIN | {"check": "not_contain"}, {}, ""),
        (CONTAIN | {"check": "not_contain"}, {"a.txt": "Ada 1200"}, "'Ada' is there"),
        ({"check": "contain", "mail_of": "ben", "keywords": ["word"]}, {"emails/Ben/x.eml": MAIL}, ""),
        ({"check": "contain", "mail_of": "Ada", "keywords": ["word"]}, {"emails/Ben/x.eml": MAIL}, "'word' is missing"),
        ({"check": "contain", "mail_of": "Ada", "keywords": ["word"]}, {}, "'word' is missing"),
        ({"check": "file_exist", "file": "a.txt"}, {"a.txt": ""}, ""),
        ({"check": "file_exist", "file": "a.txt"}, {}, "there is no a.txt"),
        ({"check": "file_not_exist", "file": "a.txt"}, {}, ""),
        ({"check": "file_not_exist", "file": "a.txt"}, {"a.txt": ""}, "there is a a.txt"),
        (CELLS, {"t.xlsx": [["n"], [3.0]]}, ""),
        (CELLS, {"t.xlsx": [["n"], ["4"]]}, ""),
        (CELLS, {"t.xlsx": [["n"], [30]]}, "(2, 1) is 30, not 3 or 4"),
        (CELLS | {"cells": [{"row": 2, "column": 1, "values": ["x"]}]}, {"t.xlsx": [["n"], [3]]}, "(2, 1) is 3, not x"),
        (CELLS, {"t.xlsx": [["n"]]}, "(2, 1) is None, not 3 or 4"),
        (CELLS, {"t.xlsx": [["n"], [True]]}, "(2, 1) is True, not 3 or 4"),
        (APART, {"calendar/Ada.ics": EVENTS((9, 10), (10, 11))}, ""),
        (APART, {"calendar/Ada.ics": EVENTS((10, 12), (9, 11))}, "two events overlap"),
        (APART, {"calendar/Ada.ics": EVENTS((9, 17), (10, 11), (12, 13))}, "two events overlap"),
        (APART, {}, "there is no Ada.ics"),
    ],
)  # fmt: skip
def test_checks(check: dict[str, Any], after: dict[str, Any], why: str) -> None:
    assert outcome(check, {}, after) == why


def test_checks_on_what_changed_and_on_references() -> None:
    before, after = {"t.xlsx": [["Ada", 1], ["Ben", 2]]}, {"t.xlsx": [["Ada", 1], ["Ben", 3]]}
    diff = {"check": "diff_contain", "file": "t.xlsx", "keywords": ["Ben", "3"]}
    assert outcome(diff, before, after) == ""
    assert outcome(diff | {"keywords": ["Ada"]}, before, after) == "'Ada' is not in what changed"
    assert outcome(diff, before, before) == "nothing has changed"
    match = {"check": "exact_match", "file": "t.xlsx", "reference": "r.xlsx"}
    assert outcome(match, before, after, references={"r.xlsx": after["t.xlsx"]}) == ""
    assert outcome(match, before, after, references={"r.xlsx": before["t.xlsx"]}) == "it differs from r.xlsx"
    assert outcome(match, before, after, references={"r.xlsx": [*after["t.xlsx"], ["Cid", 4]]}) != ""
    text = match | {"file": "a.docx", "reference": "r.docx"}
    assert outcome(text, {}, {"a.docx": ["x"]}, references={"r.docx": ["x"]}) == ""
    assert outcome(text, {}, {"a.docx": ["x"]}, references={"r.docx": ["y"]}) == "it differs from r.docx"


def test_a_row_without_checks_has_no_reward() -> None:
    with pytest.raises(ConfigError, match=r"payload.checks is empty"):
        judge({"prompt": "x"}, [])


# --- payloads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({}, "payload.prompt Field required"),
        ({"prompt": 7}, "payload.prompt is a int; only text is taken"),
        ({"prompt": None}, "payload.prompt is a NoneType; only text is taken"),
        ({"prompt": [{"text": "hi"}]}, "payload.prompt is a list; only text is taken"),
        ({"prompt": [{"text": "hi"}, {"toolUse": {"name": "x"}}]}, "payload.prompt has tool-use blocks"),
        ({"prompt": [{"type": "tool_use", "name": "x"}]}, "payload.prompt has tool-use blocks"),
        ({"prompt": {"toolResult": {}}}, "payload.prompt has tool-use blocks"),
        ({"prompt": ""}, "payload.prompt Value should have at least 1 item"),
        ({"prompt": "x", "username": "../Ada"}, "payload.username String should match pattern"),
        ({"prompt": "x", "files": {"a.xlsx": "text"}}, "payload.files"),
        ({"prompt": "x", "files": {"a.bin": {"base64": "%"}}}, "payload.files"),
        ({"prompt": "x", "checks": [{"check": "nothing"}]}, "payload.checks.0 Input tag 'nothing'"),
        ({"prompt": "x", "checks": [CELLS | {"cells": []}]}, "payload.checks.0.cells.cells List should have"),
        ("prompt", "payload Input should be a valid dictionary"),
    ],
)  # fmt: skip
def test_payloads_are_refused_with_the_place_of_what_is_wrong(payload: Any, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(payload)
    assert str(caught.value).startswith(why), str(caught.value)


def test_what_the_agent_is_told() -> None:
    told = read({"prompt": "Do it.", "username": "Ada", "date": "2025-01-02", "weekday": "Thursday", "more": 1}).text
    assert told == "You work for Ada. Now: Thursday 2025-01-02.\n\nDo it."


# --- the tasks --------------------------------------------------------------------------------------------------------


def test_every_task_is_solved_by_its_solution_and_not_by_its_mistake() -> None:
    played = list(islice(office["tasks"].tasks("train", 3), 10))
    assert {len(task.apps) for task in played} == {1, 2, 3}
    for task in played:
        right, wrong = (judge(task.row, calls) for calls in (task.solution, task.wrong))
        assert all(o["passed"] for o in right), (task.prompt, right)
        assert not all(o["passed"] for o in wrong), (task.prompt, wrong)
        assert not all(o["passed"] for o in judge(task.row, [])), task.prompt


def test_train_and_held_out_tasks_are_disjoint() -> None:
    tasks = office["tasks"].tasks
    seen = {s: [t.identity for seed in range(2) for t in islice(tasks(s, seed), 100)] for s in ("train", "held-out")}
    assert not set(seen["train"]) & set(seen["held-out"])
    assert len(set(seen["train"][:100])) == 100
    assert seen["train"][:100] != seen["train"][100:]


def test_the_rows_are_what_prepare_makes(capsys: pytest.CaptureFixture[str]) -> None:
    assert example(f"{FOLDER}/prepare.py").main(["builtin", "held-out", "10"]) == 0
    made = capsys.readouterr().out
    assert made == (HOME / "rows.jsonl").read_text()
    assert "solution" not in made


# --- OfficeBench's own tasks ------------------------------------------------------------------------------------------


def original(folder: Path, task: dict[str, Any]) -> Path:
    """A task in OfficeBench's layout."""
    home = folder / "2-7"
    for name, rows in {
        "testbed/data/pay.xlsx": [["who", "pay"], ["Ada", 10]],
        "reference/pay.xlsx": [["Ada", 20]],
    }.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        office["excel"].write_rows(home / name, rows)
    (home / "subtasks").mkdir()
    path = home / "subtasks" / "0.json"
    path.write_text(json.dumps(task))
    return path


ORIGINAL = {
    "username": "Bob",
    "date": "2020-05-01",
    "weekday": "Friday",
    "time": "10:00 AM",
    "task": "Double the pay of Ada and tell her",
    "evaluation": [
        {"function": "evaluate_contain", "args": {"doc_type": "xlsx", "file": "./data/pay.xlsx", "keywords": ["20"]}},
        {"function": "evaluate_not_contain", "args": {"doc_type": "email", "username": "Ada", "keywords": ["10"]}},
        {"function": "evaluate_file_exist", "args": {"file": "data/pay.xlsx"}},
        {"function": "evaluate_file_not_exist", "args": {"file": "data/old.xlsx"}},
        {"function": "evaluate_calendar_no_overlap", "args": {"username": "Bob"}},
        {
            "function": "evaluate_excel_cell_value",
            "file": "data/pay.xlsx",
            "args": {"matches": [{"row": "2", "col": 2, "value": "20"}]},
        },
        {
            "function": "evaluate_excel_cell_comparator",
            "args": {
                "file": "data/pay.xlsx",
                "matches": [{"row": 2, "col": 2, "comparator": "lambda x: x in ['20', '21']"}],
            },
        },
        {
            "function": "evaluate_diff_contain_text",
            "args": {
                "doc_type": "xlsx",
                "input_file": "../../../../cache/0/testbed/data/pay.xlsx",
                "output_file": "./data/pay.xlsx",
                "keywords": ["Ada", "20"],
            },
        },
        {
            "function": "evaluate_exact_match",
            "args": {
                "doc_type": "xlsx",
                "result_file": "data/new.xlsx",
                "expected_file": "../../../../reference/pay.xlsx",
            },
        },
    ],
}


def test_a_task_of_officebench_becomes_a_row_that_can_be_judged(tmp_path: Path) -> None:
    row = office["convert"].convert_task(original(tmp_path, ORIGINAL))
    assert (row["prompt"], row["username"], row["input_id"]) == ("Double the pay of Ada and tell her", "Bob", "2-7-0")
    assert [check["check"] for check in row["checks"]] == [
        "contain", "not_contain", "file_exist", "file_not_exist", "no_overlap", "cells", "cells", "diff_contain",
        "exact_match",
    ]  # fmt: skip
    solution = [
        ("excel_set_cell", {"file": "data/pay.xlsx", "row": 2, "column": 2, "value": "20"}),
        ("excel_create", {"file": "data/new.xlsx", "rows": [["Ada", "20"]]}),
        ("calendar_create", {"user": "Bob", "summary": "s", "start": "2020-05-01 10:00", "end": "2020-05-01 11:00"}),
        ("email_send", {"sender": "Bob", "recipient": "Ada", "subject": "pay", "body": "You get 20."}),
    ]
    assert [o["passed"] for o in judge(row, solution)] == [True] * 9
    nothing = judge(row, [])
    assert [o["passed"] for o in nothing] == [False, True, True, True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"task": None, "evaluation": [{"function": "evaluate_magic", "args": {}}]}, "'evaluate_magic' is unknown"),
        ({"evaluation": [{"function": "evaluate_contain", "args": {"doc_type": "txt"}}]}, "'file' is missing"),
        ({"evaluation": [{"function": "evaluate_file_exist", "args": {"file": "../../x"}}]}, "leads out of the work"),
        ({"evaluation": [{"function": "evaluate_excel_cell_comparator", "args": {"file": "a.xlsx", "matches": [
            {"row": 1, "col": 1, "comparator": "lambda x: __import__('os').system('true')"}]}}]}, "not of the form"),
        ({"evaluation": [{"function": "evaluate_excel_cell_comparator", "args": {"file": "a.xlsx", "matches": [
            {"row": 1, "col": 1, "comparator": "lambda x: x not in ['1']"}]}}]}, "not of the form"),
        ({"evaluation": [{"function": "evaluate_exact_match", "args": {"doc_type": "xlsx", "result_file": "a.xlsx",
            "expected_file": "../../../../reference/none.xlsx"}}]}, "No such file"),
    ],
)  # fmt: skip
def test_a_task_that_cant_be_converted_says_why(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = original(tmp_path, ORIGINAL | change)
    with pytest.raises(ConfigError, match=why):
        office["convert"].convert_task(path)


def test_prepare_reports_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare = example(f"{FOLDER}/prepare.py").main
    good = original(tmp_path, ORIGINAL)
    (good.parent / "1.json").write_text("{}")
    assert prepare(["officebench", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert [json.loads(line)["input_id"] for line in said.out.splitlines()] == ["2-7-0"]
    assert "1.json can't be converted: 'evaluation' is missing; the other tasks are used" in said.err
    (tmp_path / "2-7/testbed/data/scan.PNG").write_bytes(b"")
    assert prepare(["officebench", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()[-1]) == ("", "left out 1 tasks with pictures")
    assert prepare(["officebench", str(tmp_path), "--images"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert prepare(["officebench", str(tmp_path / "2-7")]) == 1
    assert capsys.readouterr().err.splitlines()[0] == f"error: there are no tasks in {tmp_path / '2-7'}"
