from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit import __version__
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.store import open_store
from support.process import clean_env


def test_an_error_is_one_line_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", "./nowhere"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {os.path.abspath('nowhere')} does not exist\nhint: ")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"agentcore-rl {__version__}\n"


def test_a_closed_stdin_is_open_for_what_the_command_starts() -> None:
    code = "import os; from agentcore_rl_toolkit.cli import main; main(['results', './nowhere']); os.system('cat')"
    command = ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 2), done.stderr


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["rescore"]])
def test_a_command_line_that_says_too_little_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert capsys.readouterr().err.startswith("usage: agentcore-rl")


@pytest.mark.parametrize("size", [1, 10_000])  # in all less than Python's buffer, and more
def test_a_reader_that_stops_early_is_no_error(tmp_path: Path, size: int) -> None:
    store = open_store(str(tmp_path))
    for i in range(50):
        store.put_if_absent(f"exp/{i}/s.json", json.dumps({"status_code": 200, "text": "x" * size}).encode())
    done = run_unread("results", str(tmp_path), "--json")
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_that_nobody_reads_is_no_error() -> None:
    done = run_unread("--help")
    assert (done.returncode, done.stderr) == (0, b"")


def run_unread(*argv: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command with a pipe as its stdout that nobody reads any more."""
    code = "import sys; from agentcore_rl_toolkit.cli import main; sys.exit(main())"
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as closed:
        command = [sys.executable, "-c", code, *argv]
        return subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, env=clean_env(PYTHONUNBUFFERED=""))


WITHOUT = """
import sys
from agentcore_rl_toolkit.cli import main

sys.modules |= dict.fromkeys(["multidict", "numpy", "xxhash"])  # as if they were not installed
for line in sys.argv[1:]:
    print(main(line.split()), line, file=sys.stderr)
"""


def test_a_missing_extra_is_named_by_every_verb_that_needs_it(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").write_text("")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    lines = {
        "rollout rl_app.py --base-url http://127.0.0.1:9/v1": "local",
        "gateway serve --engine vllm=http://127.0.0.1:9 --tokenizer tiny": "gateway",
        "ui": "gateway",
        "train rl_app.py --rows-per-step 1": "trl",
        "train rl_app.py --rows-per-step 1 --backend tinker": "tinker",
        "train rl_app.py --backend sagemaker-session": "sagemaker",
    }
    command = [sys.executable, "-c", WITHOUT, *lines]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean_env(), timeout=100).stderr
    for line, extra in lines.items():
        assert f"which is not installed\nhint: pip install 'agentcore-rl-toolkit[{extra}]'\n1 {line}" in said


def test_a_missing_module_of_the_users_is_not_taken_for_an_extra(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "mine.py").write_text("import no_such_module\ndef score(result, row): return 1.0\n")
    line = "rescore . --reward mine.py:score"
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", *line.split()]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean_env(), timeout=100).stderr
    assert "no_such_module" in said
    assert "pip install" not in said
