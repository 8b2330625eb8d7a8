"""`--env`, `--allow` and `--memory-mb`: what sessions on this machine get, declared once for every verb."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...runtime.local_agent import local_agent

if TYPE_CHECKING:
    from ...runtime.local import AgentSource


def add_sandbox_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="pass a variable to sessions on this machine, this shell's without a value; overrides .env",
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="let sessions on this machine reach an address; may be repeated",
    )
    parser.add_argument(
        "--memory-mb", type=int, metavar="N", help="memory of a session on this machine (default: 2048)"
    )


def sandboxed(args: argparse.Namespace) -> str | AgentSource:
    """The agent of a command line, with what the flags give its sessions."""
    return local_agent(args.agent, env=variables(args.env), allow=args.allow, memory_mb=args.memory_mb)


def variables(given: Iterable[str]) -> dict[str, str]:
    """The variables of `--env NAME=VALUE` and `--env NAME`."""
    return dict(_variable(text) for text in given)


def _variable(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator and name not in os.environ:
        raise ConfigError(f"--env {name}: this shell has no such variable", hint="write NAME=VALUE")
    return name, value if separator else os.environ[name]
