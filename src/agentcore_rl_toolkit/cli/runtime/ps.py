"""List the sessions of a running local runtime."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from ...common.text_table import format_table
from .logs import add_url_flag, fetch

HELP = "list the sessions of a running runtime"
EXAMPLES = ("agentcore-rl runtime ps", "agentcore-rl runtime ps --json | jq .counts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_url_flag(parser)
    parser.add_argument("--watch", action="store_true", help="print the list again every second, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    while True:
        state = json.loads(fetch(args.url, "/sessions")[0])
        if args.watch and not args.json and sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")
        print(json.dumps(state) if args.json else _table(state), flush=True)
        if not args.watch:
            return 0
        time.sleep(1)


def _table(state: dict[str, Any]) -> str:
    rows = []
    for session in state["sessions"]:
        memory = "-" if session["memory_mb"] is None else f"{session['memory_mb']:.0f}"
        times = [f"{session['seconds']:.0f}", f"{session['idle_seconds']:.0f}"]
        names = [session["session_id"], session["agent"], session["state"]]
        rows.append([*names, *times, memory, str(len(session["protections"]))])
    counts = ", ".join(f"{count} {name}" for name, count in state["counts"].items())
    header = ["session", "agent", "state", "age s", "idle s", "MB", "protections"]
    return f"{format_table(header, rows)}\n\n{len(rows)} of {state['max_sessions']} sessions; {counts}"
