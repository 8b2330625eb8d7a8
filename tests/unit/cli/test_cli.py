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
