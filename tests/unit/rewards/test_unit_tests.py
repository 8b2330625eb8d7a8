"""`UnitTestFraction`: the fraction is earned, not claimed, and nothing of a response outlives its tests."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rewards import UnitTestFraction

DOUBLE = "def double(x):\n    return x + x\n"
reward_fn = UnitTestFraction()


def passes(code: str, test: str = "pass", **settings: Any) -> bool:
    return UnitTestFraction([test], **settings)(response_text=code) == 1.0


def test_the_score_is_passed_over_total() -> None:
    tests = ["assert double(2) == 4", "assert double('a') == 'aa'", "assert double(2) == 5", "undefined"]
    assert reward_fn(response_text=DOUBLE, tests=tests, ground_truth="ignored") == 0.5


def test_tests_of_the_call_go_before_those_of_the_constructor() -> None:
    reward_fn = UnitTestFraction(["assert double(2) == 5"])
    assert reward_fn(response_text=DOUBLE) == 0.0
    assert reward_fn(response_text=DOUBLE, tests=["assert double(2) == 4"]) == 1.0


@pytest.mark.parametrize(
    "response",
    [
        DOUBLE,
        f"Like this:\n```python\n{DOUBLE}```\nand run it:\n```sh\npython double.py\n```",
        f"```py\nraise ValueError\n```\nor better\n```python\n{DOUBLE}```",
        f"```\n{DOUBLE}```",
        f"```python\n{DOUBLE}",
        DOUBLE + 'if __name__ == "__main__":\n    raise ValueError\n',
    ],
)
def test_the_code_is_found_in_the_response(response: str) -> None:
    assert passes(response, "assert double(2) == 4")


FAILS = "assert False, 'this test cannot pass'"
CHEATS = {
    "os._exit": "import os; os._exit(0)",
    "sys.exit": "import sys; sys.exit(0)",
    "raise SystemExit": "raise SystemExit(0)",
    "exit in the test": "import builtins, os; builtins.AssertionError = lambda *a: os._exit(0)",
    "print": "print('PASSED'); print('1 passed'); print('{\"ready\": true}', flush=True)",
    "no exec": "import builtins; builtins.exec = builtins.compile = lambda *a, **k: None",
    "no os": "import os; os._exit = os.write = lambda *a: None",
    "excepthook": "import sys; sys.excepthook = lambda *a: None; sys.stderr = None",
    "atexit": "import atexit, os; atexit.register(os._exit, 0)",
    "every descriptor": """
import os
for fd in range(64):
    for word in (b'PASSED', b'true', b'{"ready": true}\\n', b'0' * 32):
        try: os.write(fd, word)
        except OSError: pass
os._exit(0)
""",
    "a token in the frames": """
import os, re, sys
frame, seen = sys._getframe(), repr((sys.argv, dict(os.environ)))
while frame:
    seen += repr((frame.f_locals, frame.f_globals))
    frame = frame.f_back
seen += ''.join(repr(getattr(v, '__dict__', '')) for v in vars(sys.modules['__main__']).values())
for token in re.findall('[0-9a-f]{32}', seen):
    os.write(int(sys.argv[1]), token.encode())
os._exit(0)
""",
    "a token in its folder or input": """
import os, re, sys
seen = sys.stdin.read() + ''.join(open(name).read() for name in os.listdir())
for token in re.findall('[0-9a-f]{32}', seen):
    os.write(int(sys.argv[1]), token.encode())
os._exit(0)
""",
}


@pytest.mark.parametrize("code", CHEATS.values(), ids=list(CHEATS))
def test_a_pass_cannot_be_faked(code: str) -> None:
    assert not passes(code, FAILS)


@pytest.mark.parametrize(
    "code",
    ["def broken(:", "raise ValueError", "(" * 5_000, "x = '\ud800'", "import os; os.kill(os.getpid(), 9)", "\0"],
    ids=lambda code: code[:20],
)
def test_code_that_fails_fails_every_test(code: str) -> None:
    assert not passes(code)


HARMLESS = {
    "empty": "",
    "much output": "import sys\nfor _ in range(200): print('x' * 100_000)\nsys.stderr.write('x' * 100_000)",
    "a thread": "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()",
    "a dataclass": "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass A:\n  x: int",
    "an installed package": "import pytest",
}


@pytest.mark.parametrize("code", HARMLESS.values(), ids=list(HARMLESS))
def test_what_ordinary_code_does_is_no_failure(code: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert passes(code)
    assert capfd.readouterr() == ("", "")


def test_a_test_that_does_not_end_fails_alone() -> None:
    code = "import time\ndef f(x):\n    time.sleep(1000 * x)"
    tests = ["f(0)", "f(1)", "f(0)"]
    assert UnitTestFraction(tests, timeout_seconds=1.0)(response_text=code) == pytest.approx(2 / 3)


def test_a_failure_is_known_though_a_thread_stays_behind() -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()"
    assert not passes(code, FAILS, timeout_seconds=1000)


def test_all_that_have_not_finished_in_the_total_time_fail() -> None:
    code = "import time\ndef f(x):\n    time.sleep(1000 * x)"
    reward_fn = UnitTestFraction(["f(0)", "f(1)", "f(0)", "f(0)"], timeout_seconds=60, total_seconds=1.0)
    assert reward_fn(response_text=code) == 0.25


def test_every_test_starts_afresh() -> None:
    test = "import os\nassert not os.listdir()\nopen('left', 'w').close()\nseen.append(1)\nassert seen == [1]"
    assert reward_fn(response_text="seen = []", tests=[test, test]) == 1.0


def test_it_runs_isolated_without_our_environment_or_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "only_on_pythonpath.py").touch()
    checks = [
        "import os; assert 'AWS_SECRET_ACCESS_KEY' not in os.environ",
        "import sys; assert sys.flags.isolated",
        "import os, tempfile; assert os.path.realpath(tempfile.gettempdir()) == os.getcwd()",
        "import os; assert os.getpgrp() == os.getsid(0) == os.getpid()",
        "try: import only_on_pythonpath\nexcept ImportError: pass\nelse: raise ValueError",
        "try: input()\nexcept EOFError: pass\nelse: raise ValueError",
    ]
    assert [passes("", check) for check in checks] == [True] * len(checks)


def test_time_memory_and_files_are_limited() -> None:
    limits = ["CPU", "FSIZE", "CORE"] + ([] if sys.platform == "darwin" else ["AS"])
    most = {"CPU": 10, "FSIZE": 2**26, "CORE": 0, "AS": 256 * 2**20}
    for name in limits:
        test = f"import resource\nassert 0 <= resource.getrlimit(resource.RLIMIT_{name})[1] <= {most[name]}"
        assert passes("", test, timeout_seconds=5, memory_mb=256), name


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no such limit")
def test_code_that_takes_too_much_memory_fails() -> None:
    assert not passes("x = bytearray(2**30)", memory_mb=512)
    assert passes("x = bytearray(2**20)", memory_mb=512)


@pytest.mark.parametrize("then", ["", "raise ValueError", "import os; os._exit(0)", "while True: pass"])
def test_no_process_outlives_its_test(tmp_path: Path, then: str) -> None:
    note = tmp_path / "pid"
    code = f"import subprocess\np = subprocess.Popen(['sleep', '1000'])\nopen({str(note)!r}, 'w').write(str(p.pid))\n"
    UnitTestFraction([then or "pass"], timeout_seconds=1.0)(response_text=code)
    deadline = time.monotonic() + 30
    while _state(int(note.read_text())) not in ("", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _state(pid: int) -> str:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1]


def test_its_folder_is_gone_afterwards(tmp_path: Path) -> None:
    note = tmp_path / "cwd"
    assert passes(f"import os\nopen('left', 'w').close()\nopen({str(note)!r}, 'w').write(os.getcwd())")
    folder = Path(note.read_text())
    assert folder != Path.cwd()
    assert not folder.exists()


def test_many_threads_may_call_it_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        scores = pool.map(lambda n: reward_fn(response_text=f"n = {n}", tests=["assert n % 2"]), range(16))
        assert list(scores) == [float(n % 2) for n in range(16)]


@pytest.mark.parametrize("tests", [[], "assert True", [1], None], ids=repr)
def test_tests_that_are_no_list_of_strings_are_refused(tests: Any) -> None:
    with pytest.raises(ConfigError, match=r"tests(.|\n)*hint:"):
        reward_fn(response_text="", tests=tests)


@pytest.mark.parametrize("test", ["assert f(", "\0", "x = '\ud800'"], ids=ascii)
def test_a_test_that_is_not_python_is_refused_rather_than_failed(test: str) -> None:
    with pytest.raises(ConfigError, match="is not valid Python"):
        UnitTestFraction([test])


def test_a_child_that_does_not_start_is_an_error_not_a_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/cat")
    with pytest.raises(ConfigError, match="was not ready"):
        passes("")
