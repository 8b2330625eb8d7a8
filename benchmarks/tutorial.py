"""Types the tutorial's commands into a fresh shell, and nothing else, and measures how long each part takes.

python benchmarks/tutorial.py              as its reader has it; needs the ports 8000 and 8080
python benchmarks/tutorial.py --install    types the installation too, into a new virtual environment
python benchmarks/tutorial.py --short      a few rows and one step, as the tests run it

Prints what the commands print, and writes `benchmarks/results/tutorial.json` after a whole run that succeeded.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from report import ROOT, write

sys.path.append(str(ROOT / "tests"))

from support.docs import Block, blocks

PAGE = ROOT / "docs" / "tutorial.md"
SHORT = {
    "--steps 12": "--steps 1 --rows-per-step 2 --n 2",
    "--eval-data stock_agent/held_out.jsonl ": "",
    "--data stock_agent/held_out.jsonl": "--data stock_agent/held_out.jsonl --limit 4",
    "range(640)": "range(620)",
}
"""What the shortened path has in place of the page's words."""
_MARK = "tutorial-block"


@dataclass
class Typed:
    """What a shell made of the page."""

    code: int
    output: str
    seconds: dict[str, float]
    """By the first words of each block."""

    def parts(self) -> dict[str, float]:
        return {name: round(seconds, 1) for name, seconds in self.seconds.items()}


def type_page(folder: Path, swaps: dict[str, str], env: dict[str, str], *, install: bool = False) -> Typed:
    """Write the page's files into a folder, and type its commands into a new shell there."""
    found = blocks(PAGE)
    for block in found:
        if "file" in block.notes:
            path = folder / block.notes["file"]
            path.parent.mkdir(exist_ok=True)
            path.write_text(_swapped(block.code, swaps))
    wanted = [b for b in found if b.label == "bash" and ("run by" in b.notes or install)]
    command = ["bash", "-e", "-c", _script(wanted, swaps)]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []
    began: dict[str, float] = {}
    assert process.stdout is not None
    with process, process.stdout as printed:
        for line in printed:
            if line.startswith(_MARK):
                began[line.removeprefix(_MARK).strip()] = time.monotonic()
            else:
                print(line, end="", flush=True)
                lines.append(line)
        code = process.wait()
    ends = [*list(began.values())[1:], time.monotonic()]
    seconds = {name: end - start for (name, start), end in zip(began.items(), ends, strict=True)}
    return Typed(code, "".join(lines), seconds)


def _script(wanted: Iterable[Block], swaps: dict[str, str]) -> str:
    """The commands of all blocks for one shell, which says when each begins and ends what it started."""
    parts = ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for block in wanted:
        name = " ".join([word for word in block.code.split() if "=" not in word][:2])
        parts += [f"echo; echo {_MARK} {name} at line {block.line}", _swapped(block.code, swaps)]
    return "\n".join(parts)


def _swapped(text: str, swaps: dict[str, str]) -> str:
    for old, new in swaps.items():
        text = text.replace(old, new)
    return text


def clean_env(home: Path) -> dict[str, str]:
    """What a new login shell has; `agentcore-rl` is that of the Python that runs this."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    kept = {name: os.environ[name] for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "LANG") if name in os.environ}
    return {"HOME": str(home), "PATH": path, **kept}


def verdict(output: str) -> str:
    """The line that compares the two models."""
    found = re.findall(r"^a is .*$", output, re.MULTILINE)
    return str(found[-1]) if found else "no comparison was printed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few rows and one step")
    parser.add_argument("--install", action="store_true", help="type the installation too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        started = time.monotonic()
        typed = type_page(home, SHORT if args.short else {}, clean_env(home), install=args.install)
        minutes = (time.monotonic() - started) / 60
    print(f"\nended with code {typed.code} after {minutes:.1f} minutes: {verdict(typed.output)}")
    if not args.short and typed.code == 0:
        figures = {"minutes": round(minutes, 2), "code": typed.code, "verdict": verdict(typed.output)}
        write("tutorial", figures | {"installed": args.install, "seconds": typed.parts()})
    return typed.code


if __name__ == "__main__":
    sys.exit(main())
