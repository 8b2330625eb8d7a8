"""`agentcore-rl runtime check`: which protections hold on this machine, and why the others don't."""

from __future__ import annotations

import argparse
import sys

from ..terminal.table import format_table


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("check", help="which protections hold on this machine", description=__doc__)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; exit with 1 if a protection is missing."""
    from ...runtime.local.policy import default_max_sessions
    from ...runtime.local.sandbox.namespaces import PROTECTIONS
    from ...runtime.local.sandbox.probe import probe

    found = probe()
    rows = [[name, "no" if found[name] else "yes", text, found[name] or ""] for name, text in PROTECTIONS.items()]
    print(format_table(["protection", "holds", "what it gives a session", "why not"], rows))
    missing = sum(reason is not None for reason in found.values())
    print(f"\n{len(found) - missing} of {len(found)} protections hold here.", file=sys.stderr)
    if missing:
        print("Sessions run without the others. Don't run agents you don't trust.", file=sys.stderr)
    print(f"This machine carries up to {default_max_sessions()} sessions.", file=sys.stderr)
    return 1 if missing else 0
