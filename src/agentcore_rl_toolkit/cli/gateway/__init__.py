"""`agentcore-rl gateway …`: the model gateway, and looking at what it recorded."""

from __future__ import annotations

import argparse

from . import serve, show

VERBS = (serve, show)


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verbs."""
    parser = subparsers.add_parser("gateway", help="serve a model to agents and record every turn", description=__doc__)
    inner = parser.add_subparsers(title="verbs", dest="gateway_verb", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add(inner)
