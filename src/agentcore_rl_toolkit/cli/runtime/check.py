"""Show which protections hold on this machine, and why others don't. Exits with 1 if one is missing."""

from __future__ import annotations

import argparse

from ...common.text_table import format_table
from ..flags import say

HELP = "show which protections hold on this machine"
EXTRA = "local"
EXAMPLES = ("agentcore-rl runtime check",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from ...runtime.local.sandbox.namespaces import PROTECTIONS
    from ...runtime.local.sandbox.probe import default_max_sessions, probe

    found = probe()
    rows = [[name, "no" if found[name] else "yes", text, found[name] or ""] for name, text in PROTECTIONS.items()]
    print(format_table(["protection", "holds", "what it gives a session", "why not"], rows))
    missing = sum(reason is not None for reason in found.values())
    say(f"\n{len(found) - missing} of {len(found)} protections hold here.")
    if missing:
        say("Sessions run without the others. Don't run agents you don't trust.")
    say(f"This machine can run up to {default_max_sessions()} sessions.")
    return 1 if missing else 0
