"""The `agentcore-rl` command: one file per verb, in folders as the path has them.

In: a command line. Out: data on stdout, everything else on stderr, and an exit code. A verb parses, calls the station
that does the work, and prints; it refuses to hold logic that Python users need too. `main` handles Ctrl-C before it
imports anything slow.

Imports `client`, `runtime`, `store`.
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
    """The parser of the whole command line."""
    from .. import __version__
    from . import verbs
    from .terminal.parser import Parser

    parser = Parser(
        prog="agentcore-rl",
        description="Train the agent you deploy: rollouts, results and rewards.",
        examples=verbs.EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"agentcore-rl {__version__}")
    verbs.add_verbs(parser, verbs.VERBS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. An expected error is one line and exit code 1; Ctrl-C exits with 130."""
    _open_closed_streams()
    with Interrupts(until_exit=argv is None) as interrupts:
        try:
            code = _run_and_flush(argv)
        except KeyboardInterrupt:
            return CODE
        return CODE if interrupts.came and code == 0 else code


def _open_closed_streams() -> None:
    """Open what the caller has closed. Another file or socket would take its number, which libuv aborts at."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w" if number else "r")  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _run_and_flush(argv: Sequence[str] | None) -> int:
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # Python's own flush at exit could not be caught
    except BrokenPipeError:  # `| head` closed the pipe; the rest of the buffer goes to /dev/null
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv: Sequence[str] | None) -> int:
    from ..common.text_table import escape
    from ..errors import AgentCoreRLError
    from .terminal.log_lines import escape_logs

    escape_logs()
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if hasattr(args, "rest"):  # `train` parses its options itself, once it knows the backend
        args.rest = rest
    elif rest:
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code: int = args.run(args)
    except AgentCoreRLError as error:
        print(escape(f"error: {error}"), file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if not args.extra or not _is_ours(error):
            raise
        print(f"error: {args.parser.prog} needs {error.name}, which is not installed", file=sys.stderr)
        print(f"hint: pip install 'agentcore-rl-toolkit[{args.extra}]'", file=sys.stderr)
        return 1
    return code


def _is_ours(error: ImportError) -> bool:
    """Whether a file of this package, or of one that it needs, imports what is missing, and no file of the user's."""
    import traceback

    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    asking = [file for file in files if not file.startswith("<frozen ")][-1]
    return asking.startswith(os.path.dirname(os.path.dirname(__file__))) or "site-packages" in asking
