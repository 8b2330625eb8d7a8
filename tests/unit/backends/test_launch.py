"""Starting a program, ending it with all that it started, and what is left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.base import TrainingPlan
from agentcore_rl_toolkit.backends.launch import ProgramExit, hydra_value, launch, run_trainer
from agentcore_rl_toolkit.errors import AgentCoreRLError, ConfigError
from support.process import clean_env
from support.runtime import eventually

PROGRAM = r"""
import json, os, pathlib, signal, subprocess, sys, time
folder, deaf, child_deaf = pathlib.Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")
heard = []

def hear(number, _):
    name = signal.Signals(number).name
    heard.append(name)
    (folder / "heard.part").write_text(json.dumps(heard))
    (folder / "heard.part").rename(folder / "heard.json")
    if name not in deaf:
        sys.exit(7)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, hear)
child = (
    "import signal, time\n"
    + "".join(f"signal.signal(signal.{name}, signal.SIG_IGN)\n" for name in child_deaf if name)
    + "print('ready', flush=True)\ntime.sleep(600)"
)
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
process.stdout.readline()
(folder / "pids.part").write_text(json.dumps([os.getpid(), process.pid]))
(folder / "pids.part").rename(folder / "pids.json")
while True:
    time.sleep(0.05)
"""
"""A program with a child; each may be deaf to some signals."""

LAUNCHER = """
import json, sys
from agentcore_rl_toolkit.backends.base import TrainingPlan
from agentcore_rl_toolkit.backends.launch import launch
plan = TrainingPlan(backend="b", settings={}, command=tuple(json.loads(sys.argv[1])))
stages = zip((2, 15), map(float, sys.argv[2:]))
ending = launch(plan, stages=list(stages)) if sys.argv[2:] else launch(plan)
print(json.dumps([ending.code, ending.interrupted]))
"""


def plan(code: str, **more: Any) -> TrainingPlan:
    return TrainingPlan(backend="b", settings={}, command=(sys.executable, "-c", code), **more)


@contextlib.contextmanager
def launched(folder: Path, *, deaf: str = "", child_deaf: str = "", seconds: tuple[float, ...] = ()) -> Iterator[Any]:
    """A process that launches the program, once both it and its child are there; `seconds` are those of its stages."""
    program = [sys.executable, "-c", PROGRAM, str(folder), deaf, child_deaf]
    command = [sys.executable, "-c", LAUNCHER, json.dumps(program), *map(str, seconds)]
    process = subprocess.Popen(
        command, env=clean_env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        eventually(lambda: (folder / "pids.json").exists() or process.poll() is not None, seconds=60)
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in json.loads((folder / "pids.json").read_text()) if (folder / "pids.json").exists() else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def ended(process: Any, folder: Path) -> tuple[ProgramExit, list[str]]:
    """How a launch ended, and what its program heard; nothing of it runs any more."""
    out, said = process.communicate(timeout=60)
    assert "ending b; press Ctrl-C again to skip the wait" in said
    eventually(lambda: not any(runs(pid) for pid in json.loads((folder / "pids.json").read_text())))
    return ProgramExit(*json.loads(out)), json.loads((folder / "heard.json").read_text())


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_files_are_written_and_the_exit_code_is_given(tmp_path: Path) -> None:
    seen = tmp_path / "deep" / "seen"
    code = f"import os, pathlib, sys; assert pathlib.Path({str(seen)!r}).read_text() == os.environ['X']; sys.exit(3)"
    ending = launch(plan(code, environment={"X": "text"}, files={str(seen): "text"}))
    assert ending == ProgramExit(3, interrupted=False)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no-such-program can't be started: No such file"):
        launch(TrainingPlan(backend="b", settings={}, command=("no-such-program",)))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_either_signal_asks_politely_first(tmp_path: Path, number: signal.Signals) -> None:
    with launched(tmp_path) as process:
        process.send_signal(number)
        ending, heard = ended(process, tmp_path)
    assert ending == ProgramExit(128 + number, interrupted=True), "whatever the program makes of it"
    assert heard == ["SIGINT"]


def test_what_the_program_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    with launched(tmp_path, child_deaf="SIGINT", seconds=(2, 600)) as process:
        process.send_signal(signal.SIGTERM)
        _, heard = ended(process, tmp_path)
    assert heard == ["SIGINT"], "it had ended when its child was told more"


def test_what_hears_nothing_is_killed(tmp_path: Path) -> None:
    with launched(tmp_path, deaf="SIGINT,SIGTERM", child_deaf="SIGINT,SIGTERM", seconds=(2, 2)) as process:
        process.send_signal(signal.SIGINT)
        ending, heard = ended(process, tmp_path)
    assert (ending, heard) == (ProgramExit(130, interrupted=True), ["SIGINT", "SIGTERM"])


def test_a_second_signal_hurries(tmp_path: Path) -> None:
    with launched(tmp_path, deaf="SIGINT,SIGTERM", seconds=(600, 600)) as process:
        process.send_signal(signal.SIGINT)
        eventually((tmp_path / "heard.json").exists)
        process.send_signal(signal.SIGINT)
        eventually(lambda: "SIGTERM" in (tmp_path / "heard.json").read_text())
        process.send_signal(signal.SIGINT)
        ending, _ = ended(process, tmp_path)
    assert ending == ProgramExit(130, interrupted=True)


def test_only_its_own_group_is_signalled(tmp_path: Path) -> None:
    """The program has started one in its own session, which is nobody's to end."""
    other = tmp_path / "other"
    code = (
        "import pathlib, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"pathlib.Path({str(other)!r}).write_text(str(p.pid))\n"
        "time.sleep(600)"
    )

    def interrupt() -> None:
        eventually(lambda: other.exists() and other.read_text() != "", seconds=60)
        os.kill(os.getpid(), signal.SIGTERM)

    waiting = threading.Thread(target=interrupt)
    waiting.start()
    ending = launch(plan(code))
    waiting.join()
    pid = int(other.read_text())
    try:
        assert ending == ProgramExit(143, interrupted=True)
        assert runs(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_handlers_are_as_before_and_a_thread_needs_none(tmp_path: Path) -> None:
    known = signal.getsignal(signal.SIGTERM)
    found: list[ProgramExit] = []
    thread = threading.Thread(target=lambda: found.append(launch(plan("import sys; sys.exit(4)"))))
    thread.start()
    thread.join(60)
    assert found == [ProgramExit(4, interrupted=False)]
    launch(plan(""))
    assert signal.getsignal(signal.SIGTERM) is known


@pytest.mark.parametrize(
    ("code", "ending", "how"),
    [
        ("raise SystemExit(9)", ProgramExit(9, interrupted=False), "ended with code 9"),
        ("import os; os.kill(os.getpid(), 9)", ProgramExit(137, interrupted=False), "was ended by SIGKILL"),
        ("raise SystemExit(255)", ProgramExit(255, interrupted=False), "ended with code 255"),
        ("import os; os.kill(os.getpid(), 15)", ProgramExit(143, interrupted=True), "was ended by SIGTERM"),
    ],
)
def test_how_a_program_ended(code: str, ending: ProgramExit, how: str) -> None:
    assert launch(plan(code)) == ending
    assert ending.description == how


def test_a_run_leaves_its_command_and_its_summary(tmp_path: Path) -> None:
    summary = run_trainer(plan("print('hello')"), tmp_path / "run", "Program", lambda: {"more": 1})
    known = {"backend": "b", "output": str(tmp_path / "run"), "exit_code": 0, "interrupted": False, "more": 1}
    assert summary == known == json.loads((tmp_path / "run" / "summary.json").read_text())
    done = subprocess.run(["bash", str(tmp_path / "run" / "command.sh")], capture_output=True, text=True)
    assert done.stdout == "hello\n"


def test_a_resumed_run_has_no_summary_until_it_ends(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{}")
    code = f"import os; assert not os.path.exists({str(tmp_path / 'summary.json')!r})"
    assert run_trainer(plan(code), tmp_path, "Program")["exit_code"] == 0


def test_the_values_of_variables_are_in_a_file_of_this_user_while_a_run_lasts(tmp_path: Path) -> None:
    path = tmp_path / "session_env.json"
    path.write_text("{}")  # of a run that was killed
    path.chmod(0o644)
    code = f"import os; print(open({str(path)!r}).read(), oct(os.stat({str(path)!r}).st_mode)); raise SystemExit(3)"
    shown = plan(f"import sys; sys.stdout = open({str(tmp_path / 'seen')!r}, 'w'); {code}")
    with pytest.raises(AgentCoreRLError):
        run_trainer(dataclasses.replace(shown, session_env={"API_KEY": "sk-12345678"}), tmp_path, "Program")
    assert (tmp_path / "seen").read_text() == '{"API_KEY": "sk-12345678"} 0o100600\n'
    assert not path.exists()
    assert "sk-12345678" not in (tmp_path / "command.sh").read_text()


def test_the_warnings_of_a_plan_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known = dataclasses.replace(plan("pass"), notes=("data: 2 rows", "warning: 1 of 2 held-out rows"))
    run_trainer(known, tmp_path, "Program")
    assert [record.getMessage() for record in caplog.records] == ["warning: 1 of 2 held-out rows"]


def test_a_run_that_failed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        AgentCoreRLError, match=r"Program ended with code 3\nhint: its output above says why; .*command.sh"
    ):
        run_trainer(plan("raise SystemExit(3)"), tmp_path, "Program")
    assert json.loads((tmp_path / "summary.json").read_text())["exit_code"] == 3


def test_an_interrupted_run_is_none(tmp_path: Path) -> None:
    summary = run_trainer(plan("import os; os.kill(os.getpid(), 2)"), tmp_path, "Program")
    assert (summary["exit_code"], summary["interrupted"]) == (130, True)
    assert json.loads((tmp_path / "summary.json").read_text())["interrupted"] is True


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (25.0, "25.0"),
        (1e-6, "1e-06"),
        ("arn:aws:x:y/z-1.2", "arn:aws:x:y/z-1.2"),
        ("a b", "'a b'"),
        ("", "''"),
        ("3", "'3'"),
        ("1e5", "'1e5'"),
        ("null", "'null'"),
        ("plain/path.jsonl", "plain/path.jsonl"),
        ("true", "'true'"),
        ("it's", r"'it\'s'"),
        ("a\\", r"'a\\'"),
        (r"C:\x y", r"'C:\x y'"),
        (r"\'", r"'\\\''"),
        (["a", 1, ["b c"]], "[a,1,['b c']]"),
        ({"a": {"b": None}}, "{a:{b:null}}"),
    ],
)
def test_values_in_hydras_grammar(value: Any, text: str) -> None:
    assert hydra_value(value) == text


def test_what_has_no_place_in_it() -> None:
    with pytest.raises(ConfigError, match="can't be an option"):
        hydra_value(object())
