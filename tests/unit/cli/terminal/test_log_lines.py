"""What agents say, in lines on a terminal."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.cli.flags import say
from agentcore_rl_toolkit.cli.terminal.log_lines import EscapedLines
from agentcore_rl_toolkit.common.text_table import format_table
from support.process import clean_env

HOSTILE, SAFE = "\x1b]0;title\x07\x9b2J\rboom", "\\x1b]0;title\\x07\\x9b2J\\rboom"


def test_lines_errors_and_tables_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    say(f"1 failed: {HOSTILE}")
    assert main(["eval", str(tmp_path / HOSTILE)]) == 1
    err = capsys.readouterr().err
    assert f"1 failed: {SAFE}\n" in err
    assert SAFE in err.partition("error: ")[2]
    assert "\x1b" not in err
    assert SAFE in format_table(["error"], [[HOSTILE]])
    record = logging.LogRecord("x", logging.WARNING, "", 0, "it broke off: %s", (HOSTILE,), None)
    assert EscapedLines("%(levelname)s %(message)s").format(record) == f"WARNING it broke off: {SAFE}"


def test_warnings_that_nobody_configured_are_escaped() -> None:
    code = (
        "import logging\nfrom agentcore_rl_toolkit.cli import main\nmain(['results', '/nowhere'])\n"
        f"logging.getLogger('x').warning({HOSTILE!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean_env(), timeout=60)
    assert done.stderr.endswith(SAFE + "\n")
