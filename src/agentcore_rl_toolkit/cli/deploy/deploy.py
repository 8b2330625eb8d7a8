"""Deploy an agent's folder to AgentCore Runtime on AWS, and print the runtime's ARN.

Builds the image and pushes it to ECR, creates a role that may do no more than the agent needs, creates or updates the
runtime, waits until it is ready, and runs a first rollout. A second deploy changes only what differs. The folder's
.agentcore-rl.json lists what deploy created; `agentcore-rl destroy` deletes that and nothing else.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

from ..flags import (
    add_agent_folder,
    add_aws_flags,
    add_place_flags,
    agent_folder,
    place_settings,
    polling,
    read_variables,
    say,
)
from ..terminal.parser import count
from .build import add_builder_flag

HELP = "put an agent on AgentCore Runtime"
EXAMPLES = (
    "agentcore-rl deploy my_agent --dry-run",
    "agentcore-rl deploy my_agent --bucket my-results --sqs-url my-results --idle-timeout 300",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_agent_folder(parser)
    add_builder_flag(parser)
    add_place_flags(parser)
    parser.add_argument("--sqs-url", help="announce each result on this SQS queue, a name or a URL (default: none)")
    parser.add_argument("--role-arn", help="give sessions this role, unchanged (default: create one)")
    parser.add_argument("--policy", metavar="FILE", help="add the statements of this IAM policy to the created role")
    parser.add_argument("--env", action="append", default=[], help="set a variable for the agent; NAME= drops it")
    parser.add_argument("--subnet", action="append", default=[], metavar="ID", help="put sessions into this VPC subnet")
    help = "with --subnet: put sessions into this group"
    parser.add_argument("--security-group", action="append", default=[], metavar="ID", help=help)
    parser.add_argument(
        "--idle-timeout", type=count, help="end a session after this many idle seconds (default: AWS's 900)"
    )
    parser.add_argument(
        "--max-lifetime", type=count, help="end a session after this many seconds (default: AWS's 28800)"
    )
    parser.add_argument("--adopt", action="store_true", help="update a runtime that the toolkit did not create")
    parser.add_argument("--no-trial", action="store_true", help="skip the first rollout")
    parser.add_argument("--base-url", help="let the first rollout call this model, reachable from AWS (default: none)")
    parser.add_argument("--model-id", help="the model's name at that address")
    add_aws_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ...deploy.aws.state import State
    from ...deploy.deploy_settings import read_settings
    from ...deploy.deployment import Deployment, DeployOptions

    folder = agent_folder(args.agent)
    state = State.load(folder)
    settings = read_settings(folder, state, place_settings(args) | _runtime_settings(args))
    options = DeployOptions(
        engine=args.builder,
        dry_run=args.dry_run,
        adopt=args.adopt,
        trial=not args.no_trial,
        base_url=args.base_url,
        model_id=args.model_id,
        **polling(args),
    )
    with closing(Deployment(settings, state, options, say)) as deployment:
        deployed = deployment.deploy()
    if deployed is None:
        say("a dry run: nothing was changed")
        return 0
    say(f"\n{deployed.trainer_commands()}")
    print(deployed.arn)
    return 0


def _runtime_settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "queue": (args.sqs_url or "").rpartition("/")[2] or None,
        "role": args.role_arn,
        "policy": str(Path(args.policy).resolve()) if args.policy else None,
        "environment": read_variables(args.env),
        "subnets": tuple(args.subnet),
        "security_groups": tuple(args.security_group),
        "idle_seconds": args.idle_timeout,
        "lifetime_seconds": args.max_lifetime,
    }
