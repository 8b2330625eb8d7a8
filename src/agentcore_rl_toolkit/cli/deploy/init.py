"""Write a new agent's folder, or add to an agent's folder what it lacks.

A new folder runs on this machine at once and deploys as it is. It holds the production agent (`basic_app.py`), the same
agent as an RL environment (`rl_app.py`), a reward, some rows, and a Dockerfile. In a folder that has Python files,
`init` changes none: it adds an `rl_app.py` that runs the agent's `@app.entrypoint` as it is, a reward, a Dockerfile and
a list of packages, where they are missing. The files' paths go to stdout.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ...deploy.scaffold.existing_agent import complete_agent
from ...deploy.scaffold.new_agent import FRAMEWORKS, write_agent
from ...errors import ConfigError
from ...rows import data_in, rows_in
from ..flags import say

HELP = "write a new agent's folder, or what an agent's folder lacks"
EXAMPLES = (
    "agentcore-rl init my_agent",
    "agentcore-rl init my_agent --framework langgraph",
    "agentcore-rl init .",
    "agentcore-rl init my_agent --entrypoint agent.py:answer",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the folder; its last part names the agent")
    help = f"write a new agent with one of {', '.join(FRAMEWORKS)} (default: strands)"
    parser.add_argument("--framework", metavar="NAME", help=help)
    help = "the function that serves the agent's requests (default: the one with @app.entrypoint)"
    parser.add_argument("--entrypoint", metavar="FILE:FUNCTION", help=help)


def run(args: argparse.Namespace) -> int:
    folder = Path(args.name)
    if folder.is_file():
        hint = f"agentcore-rl init {folder.parent} --entrypoint {folder.name}:FUNCTION, or without --entrypoint"
        raise ConfigError(f"{folder} is a file, and init takes a folder", hint=hint)
    named = folder / (args.entrypoint or "").partition(":")[0]
    has_agent = folder.is_dir() and (any(folder.glob("*.py")) or named.is_file())
    if has_agent and args.framework:
        raise ConfigError(f"{folder} has an agent, so --framework has no effect", hint="leave it out")
    if args.entrypoint and not has_agent:
        raise ConfigError(f"--entrypoint {args.entrypoint}: {folder} has no such file")
    if has_agent:
        written, note = complete_agent(folder, args.entrypoint)
    else:
        note = ""
        written = write_agent(folder.resolve() if args.name == "." else folder, args.framework or "strands")
    for path in written:
        print(path)
    if has_agent:
        reward = next((path.name for path in written if path.name.endswith("reward.py")), "reward.py")
        say("Nothing is missing." if not written else f"Look at {reward}: it decides what the agent learns.")
    if note:
        say(note)
    data = [] if rows_in(args.name) else data_in(args.name)[:1]
    command = [
        "agentcore-rl",
        "doctor",
        args.name,
        "--model",
        "tiny",
        *(word for path in data for word in ("--data", path)),
    ]
    say(f"\nNext: {shlex.join(command)}")
    return 0
