"""`agentcore-rl runtime ps`: the sessions of a running local runtime."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from ..terminal.table import format_table
from .ask import DEFAULT_URL, ask


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("ps", help="list the sessions of a running runtime", description=__doc__)
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the runtime (default: {DEFAULT_URL})")
    parser.add_argument("--watch", action="store_true", help="show it again every second, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table, once or again and again."""
    while True:
        body, _ = ask(args.url, "/sessions")
        state = json.loads(body)
        if args.json:
            print(json.dumps(state))
        else:
            if args.watch and sys.stdout.isatty():
                print("\x1b[2J\x1b[H", end="")
            print(_table(state), flush=True)
        if not args.watch:
            return 0
        time.sleep(1)


def _table(state: dict[str, Any]) -> str:
    rows = [
        [
            session["session_id"],
            session["agent"],
            session["state"],
            f"{session['seconds']:.0f}",
            f"{session['idle_seconds']:.0f}",
            "-" if session["memory_mb"] is None else f"{session['memory_mb']:.0f}",
            str(len(session["protections"])),
        ]
        for session in state["sessions"]
    ]
    counts = ", ".join(f"{count} {name}" for name, count in state["counts"].items())
    header = ["session", "agent", "state", "age s", "idle s", "MB", "protections"]
    return f"{format_table(header, rows)}\n\n{len(rows)} of {state['max_sessions']} sessions; {counts}"
