"""Write a new agent's folder, which runs on this machine at once and deploys as it is.

It holds the production agent (`basic_app.py`), the same agent as an RL environment (`rl_app.py`), a reward, some rows,
and a Dockerfile. The files' paths go to stdout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ...deploy.scaffold import FRAMEWORKS, write_agent
from ..flags import say

HELP = "write a new agent's folder"
EXAMPLES = (
    "agentcore-rl init my_agent",
    "agentcore-rl init my_agent --framework langgraph",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the new folder; its last part names the agent")
    help = f"write the agent with one of {', '.join(FRAMEWORKS)} (default: strands)"
    parser.add_argument("--framework", default="strands", metavar="NAME", help=help)


def run(args: argparse.Namespace) -> int:
    for path in write_agent(Path(args.name), args.framework):
        print(path)
    say(f"\nNext: agentcore-rl doctor {args.name}")
    return 0
