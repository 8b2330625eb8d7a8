"""The verbs, in the order of the help. A verb is a module with `HELP`, `add_arguments(parser)` and `run(args)`.

The module's docstring is the description of the verb, and `EXAMPLES` are command lines for the end of its help. `EXTRA`
is what to install for it, if the base package is not enough. A dict groups verbs under a common word.
"""

from __future__ import annotations

import argparse
from typing import Any

from .deploy import build, deploy, destroy, doctor, export, init, plan, serve
from .gateway import job_runtime
from .gateway import serve as gateway_serve
from .rollouts import eval, rescore, results, rollout, sft, train
from .runtime import check, logs, ps
from .runtime import serve as runtime_serve
from .studio import show, ui
from .terminal import completion

GROUPS = {
    "runtime": "run agents in sandboxed sessions on this machine",
    "gateway": "serve a model to agents and record every turn",
    "sagemaker": "run agents for SageMaker's multi-turn RL on this machine",
}
EXAMPLES = (
    "agentcore-rl init my_agent                                     write an agent to start from",
    "agentcore-rl eval my_agent --model tiny                        how good is it now?",
    "agentcore-rl train my_agent --model tiny --output runs/first   train it",
    "agentcore-rl VERB --help                                       what a verb takes, with examples",
)
VERBS: dict[str, Any] = {
    "init": init,
    "train": train,
    "sft": sft,
    "rollout": rollout,
    "eval": eval,
    "rescore": rescore,
    "runtime": {"serve": runtime_serve, "check": check, "ps": ps, "logs": logs},
    "gateway": {"serve": gateway_serve},
    "sagemaker": {"serve": job_runtime},
    "results": results,
    "export": export,
    "serve": serve,
    "show": show,
    "ui": ui,
    "build": build,
    "deploy": deploy,
    "destroy": destroy,
    "doctor": doctor,
    "plan": plan,
    "completion": completion,
}


def add_verbs(parser: argparse.ArgumentParser, verbs: dict[str, Any], group: str = "") -> None:
    """Add a parser for each verb, and one with subcommands for each group."""
    subparsers = parser.add_subparsers(title="verbs", dest=f"{group}verb", required=True, metavar="VERB")
    for name, verb in verbs.items():
        if isinstance(verb, dict):
            help = GROUPS[name]
            child = subparsers.add_parser(name, help=help, description=help, examples=verb_examples(verb))
            add_verbs(child, verb, f"{name}_")
            continue
        options = {"description": verb.__doc__, "examples": getattr(verb, "EXAMPLES", ())} | getattr(
            verb, "PARSER_OPTIONS", {}
        )
        child = subparsers.add_parser(name, help=verb.HELP, **options)
        verb.add_arguments(child)
        child.set_defaults(run=verb.run, parser=child, extra=getattr(verb, "EXTRA", ""))


def verb_examples(verbs: dict[str, Any]) -> tuple[str, ...]:
    """The first example of each verb of a group."""
    return tuple(verb.EXAMPLES[0] for verb in verbs.values())
