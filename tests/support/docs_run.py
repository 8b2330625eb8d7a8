"""Runs a page of the documentation from top to bottom, in the working directory: `python -m support.docs_run PAGE`.

Shell blocks run in one shell, Python blocks in one interpreter, and both in the folder and the environment that the
blocks before them have left. `DOCS_NAMES` has what is called otherwise here than on the page: ports, mostly.
"""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from support.docs import MADE, ROOT, Block, blocks

SECONDS = 450
STATE = 'pwd > "$DOCS_STATE/pwd"; env -0 > "$DOCS_STATE/env"'


class Wrong(Exception):
    """A block that doesn't do what its page says."""


class Reader:
    """Somebody who pastes one block after another."""

    def __init__(self, names: dict[str, str], state: Path) -> None:
        self.names, self.state = names, state
        self.python: dict[str, object] = {"__name__": "__main__"}
        self.groups: list[subprocess.Popen[bytes]] = []
        self.log = state / "0.log"

    def take(self, block: Block) -> None:
        code = self.here(block.code)
        if "output" in block.notes:
            self._compare(code)
        elif block.runs and block.label == "python":
            self._interpret(code, block)
        elif "serves" in block.notes:
            *before, last = re.split(r"(?<!\\)\n", code.strip())
            self._shell("\n".join(before))
            self._serve(last, self.here(block.notes["serves"]))
        elif block.runs:
            self._shell(code)
        elif block.label == "bash":  # what comes after it is pasted where it leads
            self._shell("\n".join(re.findall(r"^cd .*", code, re.MULTILINE)))

    def end(self) -> None:
        """End what blocks have left running, the newest first."""
        for process in reversed(self.groups):
            for number in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                    process.wait(10)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    continue

    def here(self, text: str) -> str:
        """A text of the page with the names that things have here."""
        known = "|".join(map(re.escape, self.names))
        return re.sub(rf"(?<![\w/.])({known})(?!\d)", lambda found: self.names[found[1]], text)

    def _start(self, script: str) -> subprocess.Popen[bytes]:
        self.log = self.state / f"{len(self.groups) + 1}.log"
        command = ["bash", "-c", f"set -aeuo pipefail\n{script}"]  # -a: what a block sets, the next one has
        with self.log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.groups.append(process)
        return process

    def _shell(self, script: str) -> None:
        if self._start(f"{script}\n{STATE}").wait(SECONDS):
            raise Wrong(self.log.read_text()[-3000:])
        os.chdir((self.state / "pwd").read_text().rstrip("\n"))
        known = dict(pair.split("=", 1) for pair in (self.state / "env").read_text().split("\0") if pair)
        os.environ.update(known)

    def _serve(self, command: str, url: str) -> None:
        process, deadline = self._start(f"exec {command}"), time.monotonic() + SECONDS
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Wrong(f"nothing at {url}:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.1)

    def _interpret(self, code: str, block: Block) -> None:
        if code.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(code, self.python, block.name, block.name, block.line)
            if doctest.DocTestRunner().run(test, clear_globs=False).failed:
                raise Wrong("an example says something else")
            self.python = test.globs
        else:
            exec(compile("\n" * block.line + code, str(block.page), "exec"), self.python)

    def _compare(self, expected: str) -> None:
        printed = _plain("\n".join(log.read_text() for log in self.state.glob("*.log")))
        for line in _plain(expected).splitlines():
            pattern = ".*".join(map(re.escape, line.split("…")))
            if not re.search(f"^ *{pattern} *$", printed, re.MULTILINE):
                raise Wrong(f"no line is {line!r} in:\n{printed}")


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _plain(text: str) -> str:
    """One number for all, and one space for several."""
    return re.sub(" +", " ", re.sub(r"\d+(\.\d+)*", "0", text))


def _know(value: Any, name: str, known: dict[str, Any]) -> None:
    """Add a documented name, and what its own module has: its docstring's examples may use that."""
    home = sys.modules.get(getattr(value, "__module__", ""))
    known |= {other: found for other, found in vars(home).items() if not other.startswith("_")} if home else {}
    known[name] = value


def main() -> int:
    page, names = Path(sys.argv[1]), json.loads(os.environ.pop("DOCS_NAMES"))
    reader = Reader(names, Path(os.environ["DOCS_STATE"]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if MADE in page.read_text():
        for part in page.read_text().split("\n## ")[1:]:
            if "\n>>> " in part:
                module = importlib.import_module(part.split("\n")[0])
                for name in re.findall(r"^### (\w+)$", part, re.MULTILINE):
                    _know(getattr(module, name), name, reader.python)
        exec("from agentcore_rl_toolkit import *; from agentcore_rl_toolkit.rollout import *", reader.python)
    found = [block for block in blocks(page) if MADE not in page.read_text() or block.code.startswith(">>>")]
    for block in found:
        if "file" in block.notes and not (ROOT / block.notes["file"]).exists():
            with Path(block.notes["file"]).open("a") as file:
                file.write(reader.here(block.code))
    try:
        for block in found:
            try:
                reader.take(block)
            except (Wrong, subprocess.TimeoutExpired) as error:
                sys.stderr.write(f"{block.name}: {error}\n")
                return 1
    finally:
        reader.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
