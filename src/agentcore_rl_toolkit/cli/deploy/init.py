"""`agentcore-rl init NAME`: a new agent's folder, which runs here at once and deploys as it is.

It holds the agent in production (`basic_app.py`), the same as an RL environment (`rl_app.py`), a reward, some rows, and
the recipe of its container.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...deploy.scaffold import FRAMEWORKS, write_agent


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb."""
    parser = subparsers.add_parser("init", help="write a new agent's folder", description=__doc__)
    parser.add_argument("name", help="the folder; its last part is the agent's name")
    choices = ", ".join(FRAMEWORKS)
    parser.add_argument("--framework", default="strands", metavar="NAME", help=f"one of {choices} (default: strands)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the files, and say what to do next."""
    for path in write_agent(Path(args.name), args.framework):
        print(path)
    print(f"\nNext: agentcore-rl doctor {args.name}", file=sys.stderr)
    return 0
