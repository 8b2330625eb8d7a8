"""The verbs, in the order of the help. A verb is a module with `HELP`, `add_arguments(parser)` and `run(args)`.

The module's docstring is the description of the verb. A dict groups verbs under a common word.
"""

from __future__ import annotations

import argparse
from typing import Any

from .deploy import build, deploy, destroy, doctor, init
from .gateway import serve as gateway_serve
from .gateway import show
from .rollouts import eval, rescore, results, rollout, train
from .runtime import check, logs, ps
from .runtime import serve as runtime_serve

GROUPS = {
    "runtime": "run agents in sandboxed sessions on this machine",
    "gateway": "serve a model to agents and record every turn",
}
VERBS: dict[str, Any] = {
    "init": init,
    "train": train,
    "rollout": rollout,
    "eval": eval,
    "rescore": rescore,
    "runtime": {"serve": runtime_serve, "check": check, "ps": ps, "logs": logs},
    "gateway": {"serve": gateway_serve, "show": show},
    "results": results,
    "build": build,
    "deploy": deploy,
    "destroy": destroy,
    "doctor": doctor,
}


def add_verbs(parser: argparse.ArgumentParser, verbs: dict[str, Any], group: str = "") -> None:
    """Add a parser for each verb, and one with subcommands for each group."""
    subparsers = parser.add_subparsers(title="verbs", dest=f"{group}verb", required=True, metavar="VERB")
    for name, verb in verbs.items():
        if isinstance(verb, dict):
            help = GROUPS[name]
            add_verbs(subparsers.add_parser(name, help=help, description=help), verb, f"{name}_")
            continue
        options = {"description": verb.__doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
        child = subparsers.add_parser(name, help=verb.HELP, **(options | getattr(verb, "PARSER_OPTIONS", {})))
        verb.add_arguments(child)
        child.set_defaults(run=verb.run)
