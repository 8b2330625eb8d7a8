"""The `agentcore-rl` command. One file per verb; each has `add(subparsers)` and a function that returns an exit code.

Data goes to stdout, everything else to stderr. `main` handles Ctrl-C before it imports anything that takes time.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .terminal.interrupt import CODE, Interrupts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, as argparse sees it."""
    import argparse

    from .. import __version__
    from . import verbs

    parser = argparse.ArgumentParser(
        prog="agentcore-rl", description="Train the agent you deploy: rollouts, results and rewards."
    )
    parser.add_argument("--version", action="version", version=f"agentcore-rl {__version__}")
    subparsers = parser.add_subparsers(title="verbs", dest="verb", required=True, metavar="VERB")
    for verb in verbs.VERBS:
        verb.add(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; errors with a known cause are one line, and exit with 1. Ctrl-C exits with 130."""
    with Interrupts(until_exit=argv is None) as interrupts:
        try:
            code = _run_and_flush(argv)
        except KeyboardInterrupt:
            return CODE
        return CODE if interrupts.came and code == 0 else code


def _run_and_flush(argv: Sequence[str] | None) -> int:
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # a failure of Python's own flush, at exit, can't be caught
    except BrokenPipeError:  # `| head` closed early; what is left in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv: Sequence[str] | None) -> int:
    from ..errors import AgentCoreRLError

    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if hasattr(args, "rest"):  # a verb whose options depend on what was chosen reads them itself
        args.rest = rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code: int = args.run(args)
    except AgentCoreRLError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return code
