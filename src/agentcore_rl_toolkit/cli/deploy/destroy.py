"""`agentcore-rl destroy FOLDER`: remove what `deploy` made for an agent, and nothing else.

Goes by the notes in the agent's folder (.agentcore-rl.json). A bucket that has results, a repository with other images
and a role with further policies are left, and it says so.
"""

from __future__ import annotations

import argparse

from .build import agent_folder, say


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("destroy", help="remove what deploy made", description=__doc__)
    parser.add_argument("agent", nargs="?", default=".", help="the agent's folder (default: this one)")
    parser.add_argument("--dry-run", action="store_true", help="print every call, and change nothing")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds to wait for AWS (default: 900)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Remove it; exit with 1 if something had to be left."""
    from ...deploy.aws.state import State
    from ...deploy.deployment import destroy

    state = State.load(agent_folder(args.agent))
    if not state.made:
        say(f"nothing of {args.agent} is deployed from here")
    whole = destroy(state, dry_run=args.dry_run, say=say, timeout=args.timeout, pause=min(3.0, args.timeout / 100))
    if args.dry_run:
        say("a dry run: nothing was changed")
    return 0 if whole else 1
