"""`agentcore-rl runtime logs SESSION`: what a session printed, also when it has ended."""

from __future__ import annotations

import argparse
import sys
import time
from urllib.parse import quote

from .ask import DEFAULT_URL, ask


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("logs", help="show what a session printed", description=__doc__)
    parser.add_argument("session", help="session id, or the start of one")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the runtime (default: {DEFAULT_URL})")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Copy the log to stdout."""
    offset = 0
    while True:
        body, headers = ask(args.url, f"/logs/{quote(args.session, safe='')}?offset={offset}")
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
        offset = int(headers["X-Next-Offset"])
        if not body:
            if not args.follow:
                return 0
            time.sleep(0.3)
