"""`agentcore-rl runtime …`: the local runtime, and looking at it."""

from __future__ import annotations

import argparse

from . import check, logs, ps, serve

VERBS = (serve, check, ps, logs)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verbs."""
    parser = subparsers.add_parser(
        "runtime", help="run agents in sandboxed sessions on this machine", description=__doc__
    )
    inner = parser.add_subparsers(title="verbs", dest="runtime_verb", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add(inner)
