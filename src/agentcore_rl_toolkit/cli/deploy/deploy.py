"""`agentcore-rl deploy FOLDER`: from an agent's folder to the ARN of a runtime on AWS.

Builds the image and pushes it to ECR, makes a role that may do no more than the agent needs, creates or updates the
runtime, waits until it is ready, and runs a first rollout. Run again, it changes only what differs. What it made is
noted in the folder (.agentcore-rl.json); `agentcore-rl destroy` removes that and nothing else. The ARN goes to stdout.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from .build import add_place_arguments, agent_folder, place_settings, say


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("deploy", help="put an agent on AgentCore Runtime", description=__doc__)
    parser.add_argument("agent", nargs="?", default=".", help="the agent's folder (default: this one)")
    add_place_arguments(parser)
    parser.add_argument("--queue", metavar="NAME", help="announce results on this SQS queue")
    parser.add_argument("--role", metavar="ARN", help="a role of your own, used as it is")
    parser.add_argument("--policy", metavar="FILE", help="further statements for the role, as IAM's JSON")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for the agent; NAME= drops it"
    )
    parser.add_argument("--subnet", action="append", default=[], metavar="ID", help="put sessions into a VPC")
    parser.add_argument("--security-group", action="append", default=[], metavar="ID", help="with --subnet")
    parser.add_argument("--idle-seconds", type=int, metavar="N", help="end sessions idle for so long (AWS: 900)")
    parser.add_argument("--lifetime-seconds", type=int, metavar="N", help="end sessions after so long (AWS: 28800)")
    parser.add_argument("--adopt", action="store_true", help="update a runtime of that name that somebody else made")
    parser.add_argument("--no-trial", action="store_true", help="leave out the first rollout")
    parser.add_argument("--base-url", help="a model for the first rollout, reachable from AWS")
    parser.add_argument("--model-id", help="its name there")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds to wait for AWS (default: 900)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Deploy; the ARN and how trainers take it."""
    from ...deploy.aws.state import State
    from ...deploy.deploy_settings import read_settings
    from ...deploy.deployment import Deployment, DeployOptions
    from ...deploy.image import choose_engine
    from ...deploy.snippets import text

    folder = agent_folder(args.agent)
    state = State.load(folder)
    settings = read_settings(folder, state, place_settings(args) | _more_settings(args))
    options = DeployOptions(
        engine=lambda: choose_engine(args.engine),
        dry_run=args.dry_run,
        adopt=args.adopt,
        trial=not args.no_trial,
        base_url=args.base_url,
        model_id=args.model_id,
        timeout=args.timeout,
        pause=min(3.0, args.timeout / 100),
    )
    deployment = Deployment(settings, state, options, say)
    try:
        deployed = deployment.deploy()
    finally:
        deployment.close()
    if deployed is None:
        say("a dry run: nothing was changed")
        return 0
    say(f"\n{text(deployed)}\n")
    print(deployed.arn)
    return 0


def _more_settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "queue": args.queue,
        "role": args.role,
        "policy": str(Path(args.policy).resolve()) if args.policy else None,
        "environment": dict(_pair(text) for text in args.env),
        "subnets": tuple(args.subnet),
        "security_groups": tuple(args.security_group),
        "idle_seconds": args.idle_seconds,
        "lifetime_seconds": args.lifetime_seconds,
    }


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigError(f"--env {text}: no value", hint="write NAME=VALUE")
    return name, value
