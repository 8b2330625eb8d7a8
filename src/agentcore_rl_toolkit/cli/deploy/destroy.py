"""Delete what `deploy` created for an agent, and nothing else.

The folder's .agentcore-rl.json lists it. A bucket with results, a repository with other images and a role with other
policies are left; the exit code is then 1.
"""

from __future__ import annotations

import argparse

from ..flags import add_agent_folder, add_aws_flags, agent_folder, polling, say

HELP = "delete what deploy created"
EXAMPLES = (
    "agentcore-rl destroy my_agent --dry-run",
    "agentcore-rl destroy my_agent",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_agent_folder(parser)
    add_aws_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ...deploy.aws.state import State
    from ...deploy.deployment import destroy

    state = State.load(agent_folder(args.agent))
    if not state.made:
        say(f"{args.agent} has no deployment")
    complete = destroy(state, dry_run=args.dry_run, say=say, **polling(args))
    if args.dry_run:
        say("a dry run: nothing was changed")
    return 0 if complete else 1
