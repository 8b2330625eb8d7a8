"""The parser of every verb: no abbreviations, a suggestion for a mistyped word, and examples below the options."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

METAVARS = {
    "--agent-name": "NAME",
    "--agent-protocol": "PROTOCOL",
    "--allow": "HOST:PORT",
    "--aws-timeout": "SECONDS",
    "--base-url": "URL",
    "--bucket": "NAME",
    "--chat-template": "FILE",
    "--config": "FILE",
    "--context-limit": "TOKENS",
    "--data": "DATA",
    "--env": "NAME[=VALUE]",
    "--eval-data": "DATA",
    "--exp-id": "ID",
    "--failures": "STATUS=ACTION",
    "--gateway": "NAME=VALUE",
    "--gateway-public-url": "URL",
    "--gateway-url": "URL",
    "--guard": "NAME=ACTION",
    "--guards-from": "FILE",
    "--host": "ADDRESS",
    "--gateway-host": "ADDRESS",
    "--idle-timeout": "SECONDS",
    "--max-lifetime": "SECONDS",
    "--max-tokens": "TOKENS",
    "--mix": "FILE=NUMBER",
    "--model": "MODEL",
    "--model-id": "NAME",
    "--name": "NAME",
    "--outage-seconds": "SECONDS",
    "--output": "PATH",
    "--public-url": "URL",
    "--reward": "FILE:NAME",
    "--role-arn": "ARN",
    "--runtime": "ARN",
    "--runtime-url": "URL",
    "--sqs-url": "QUEUE",
    "--store": "STORE",
    "--timeout": "SECONDS",
    "--tokenizer": "MODEL",
    "--vllm": "URL",
}
"""What a flag takes, in the help; the same in every verb. Others take N, X or TEXT, by their type."""


def count(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def count_or_zero(text: str) -> int:
    """A whole number from 0 on."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, not {text}")
    return number


def above_zero(text: str) -> float:
    """A finite number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text}")
    return number


def from_zero(text: str) -> float:
    """A finite number from 0 on."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number from 0 on, not {text}")
    return number


above_zero.__name__ = from_zero.__name__ = "number"  # argparse writes `invalid number value`
_KINDS = {int: "N", count: "N", count_or_zero: "N", float: "X", above_zero: "X", from_zero: "X"}


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses what it does not know, and says what may have been meant."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        if examples:
            options["epilog"] = "\n".join(["examples:", *(f"  {line}" for line in examples)])
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **options | {"allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, which says of a mistyped flag that is required only that it is missing."""
        self._given = [str(word).partition("=")[0] for word in (sys.argv[1:] if args is None else args)]
        return super().parse_known_args(args, namespace)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """As in argparse, with a metavar that says what the flag takes."""
        takes_value = options.get("action", "store") in ("store", "append") and "choices" not in options
        if names[0].startswith("-") and takes_value and options.get("metavar") is None:
            long = next(name for name in reversed(names) if name.startswith("-"))
            options["metavar"] = METAVARS.get(long) or _KINDS.get(options.get("type", str), "TEXT")
        return super().add_argument(*names, **options)

    def format_usage(self) -> str:
        """One line, which an error begins with; the help lists the flags."""
        places = [action for action in self._actions if not action.option_strings]
        named = [str(action.metavar or action.dest).upper() for action in places]
        return f"usage: {self.prog} [OPTION ...] {' '.join(named)}".rstrip() + "\n"

    def error(self, message: str) -> NoReturn:
        super().error(message + self._suggestion(message))

    def _suggestion(self, message: str) -> str:
        """What a word that the parser refused may have meant."""
        chosen = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if chosen is not None:
            known = [word.strip("' ") for word in chosen[2].split(",")]
            return _did_you_mean([chosen[1]], known)
        if message.endswith(": VERB"):
            return f"\nhint: {self.prog} --help lists the verbs"
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        if message.startswith("unrecognized arguments: "):
            words = [word.partition("=")[0] for word in message.split()[2:]]
            return _did_you_mean([word for word in words if word.startswith("-")], flags)
        if message.startswith("the following arguments are required: "):
            return _did_you_mean([word for word in self._given if word.startswith("--") and word not in flags], flags)
        return ""


def _did_you_mean(words: Sequence[str], known: Sequence[str]) -> str:
    bare = {word.lstrip("-"): word for word in known}
    found = [bare[match] for word in words for match in difflib.get_close_matches(word.lstrip("-"), bare, 1)]
    return f"\nhint: did you mean {' and '.join(found)}?" if found else ""
