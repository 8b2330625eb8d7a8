"""Flags that several verbs take, each declared once, and the functions that read them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.runtimes.targets import resolve_targets
from ..common.text_table import escape
from ..errors import ConfigError
from ..store.base import check_store
from .terminal.parser import above_zero, count

if TYPE_CHECKING:
    from ..runtime.local import AgentSource

PLACE = ("name", "region", "bucket", "prefix", "repository")


def say(line: str) -> None:
    """Print a line to stderr: stdout is for data. Escapes what an agent may have put into it."""
    print(escape(line), file=sys.stderr, flush=True)


def add_agent_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", nargs="?", default=".", help="the agent's folder or its file (default: this folder)")


def agent_folder(agent: str) -> Path:
    """The folder of an agent that is named by its folder or its file."""
    path = Path(agent).resolve()
    return path.parent if path.is_file() else path


def add_place_flags(parser: argparse.ArgumentParser) -> None:
    """Where on AWS an agent is deployed."""
    parser.add_argument("--name", help="call the runtime this (default: the folder's name)")
    parser.add_argument("--region", help="work in this AWS region (default: AWS_REGION, in the environment or in .env)")
    parser.add_argument("--bucket", help="store results in this bucket (default: agentcore-rl-<account>-<region>)")
    parser.add_argument("--prefix", help="store results under this key (default: none in a --bucket, else the name)")
    parser.add_argument(
        "--repository", help="push the image to this ECR repository (default: ECR_REPO_NAME, or the runtime's name)"
    )


def place_settings(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in PLACE}


def add_aws_flags(parser: argparse.ArgumentParser) -> None:
    """How `deploy` and `destroy` call AWS."""
    add_dry_run(parser)
    parser.add_argument("--aws-timeout", type=above_zero, default=900.0, help="seconds to wait for AWS (default: 900)")


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="print every call and policy, and change nothing")


def polling(args: argparse.Namespace) -> dict[str, float]:
    """How long to wait for AWS, and how often to ask."""
    return {"timeout": args.aws_timeout, "pause": min(3.0, args.aws_timeout / 100)}


def add_listen_flags(parser: argparse.ArgumentParser, port: int, hosts: str) -> None:
    """Where a server listens; `hosts` are the host names that it accepts by default."""
    parser.add_argument("--host", default="127.0.0.1", help="listen on this address (default: 127.0.0.1)")
    help = f"listen on this port (default: {port})"
    parser.add_argument("--port", type=read_port, metavar="N", default=port, help=help)
    help = f"accept requests for this host name too; may be repeated (default: {hosts})"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=help)


def add_sandbox_flags(parser: argparse.ArgumentParser) -> None:
    """What sessions on this machine get."""
    help = "set a variable for sessions on this machine, over .env; NAME alone copies this shell's"
    parser.add_argument("--env", action="append", default=[], help=help)
    help = "let sessions on this machine reach an address; may be repeated"
    parser.add_argument("--allow", action="append", default=[], help=help)
    parser.add_argument("--memory-mb", type=count, help="memory of a session on this machine (default: 2048)")


def session_targets(args: argparse.Namespace) -> str | AgentSource | list[str]:
    """Where the sessions of a command line run: at its agent, with what the sandbox flags give, or on `--runtime`.

    Sessions on this machine need a store that it can write: a rollout whose result isn't stored would be waited for.
    """
    if not args.runtime and not args.agent.startswith("arn:"):
        check_store(args.store)
    sandbox = {"env": read_variables(args.env), "allow": args.allow, "memory_mb": args.memory_mb}
    return resolve_targets(args.agent, args.runtime, **sandbox)


def read_variables(given: Iterable[str]) -> dict[str, str]:
    """The variables of `--env NAME=VALUE` and `--env NAME`."""
    variables = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator and name not in os.environ:
            raise ConfigError(f"--env {name}: the variable is not set in this shell", hint="write NAME=VALUE")
        variables[name] = value if separator else os.environ[name]
    return variables


def split_pair(flag: str, text: str, example: str) -> tuple[str, str]:
    """The two sides of NAME=VALUE."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ConfigError(f"{flag} {text}: the value is missing", hint=f"write it like {example}")
    return name, value


def read_pairs(flag: str, given: Iterable[str]) -> dict[str, Any]:
    """The values of a repeated NAME=VALUE flag; a value that is JSON (`3`, `true`, `[1, 2]`) is parsed."""
    return {name: _parse(value) for name, value in (split_pair(flag, text, "name=value") for text in given)}


def read_port(text: str) -> int:
    """A port; the system would take 65536 and more modulo 65536."""
    port = int(text)
    if not 0 <= port <= 65_535:
        raise ValueError
    return port


read_port.__name__ = "port"  # argparse writes `invalid port value`


def read_concurrency(text: str) -> int | str:
    """A number of sessions, or `auto`."""
    return text if text == "auto" else count(text)


read_concurrency.__name__ = "number or auto"  # argparse writes `invalid number or auto value`


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
