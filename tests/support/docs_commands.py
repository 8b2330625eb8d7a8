"""What can be said of a shell block without running it: its commands, options, targets, extras and files exist."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from agentcore_rl_toolkit.backends.base import find, names
from agentcore_rl_toolkit.cli import build_parser
from agentcore_rl_toolkit.cli.rollouts.train import parser_for
from support.docs import ROOT, Block

OURS = ("benchmarks/", "docs/", "examples/", "scripts/", "src/", "tests/")
ENDS = {"&&", "||", ";", "|", "&"}


def objections(block: Block, homes: list[Path]) -> list[str]:
    """What is wrong with the commands of a block; `homes` are the folders it may be run in, and gets what it enters."""
    found: list[str] = []
    for words in commands(block.code):
        found += [f"{word}: there is no such file" for word in words if _ours(word) and not _exists(word)]
        found += [f"{word}: there is no such name" for word in words if _dotted(word) and not importable(word)]
        check = CHECKS.get(words[0])
        found += check(words[1:], homes) if check else []
    return [f"{block.name}: {words}" for words in found]


def commands(code: str) -> Iterator[list[str]]:
    """The words of each command, without variables set for it and without where its output goes."""
    for line in re.sub(r"\\\n", " ", code).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word not in ENDS:
                words.append(word)
                continue
            words = words[: words.index(">")] if ">" in words else words
            while words and re.match(r"\w+=", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []


def _agentcore_rl(words: list[str], homes: list[Path]) -> list[str]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args, rest = build_parser().parse_known_args(words)
            if args.verb == "train":
                parser_for(find(args.backend or "trl")).parse_args(rest)
            elif rest:
                return [f"agentcore-rl {args.verb} has no {' '.join(rest)}"]
    except SystemExit as end:
        return said.getvalue().splitlines()[-1:] if end.code else []
    return []


def sentence_objections(page: Path) -> list[str]:
    """Flags between the backticks of a sentence that the verb before them does not have."""
    known = dict(_flags(build_parser(), ()))
    known["train",] = {flag for name in names() for _, found in _flags(parser_for(find(name)), ()) for flag in found}
    found = []
    for span in re.findall(
        r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    ):
        words = span.removeprefix("agentcore-rl ").split()
        verb = next((verb for verb in (tuple(words[:2]), tuple(words[:1])) if verb in known), ())
        wrong = [
            word for word in words if verb and re.match(r"--[a-z]", word) and word.partition("=")[0] not in known[verb]
        ]
        found += [f"{page.relative_to(ROOT)}: `{span}`: {' '.join(verb)} has no {word}" for word in wrong]
    return found


def _flags(parser: argparse.ArgumentParser, verb: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Each verb of a parser with its flags."""
    yield verb, {flag for action in parser._actions for flag in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, under in action.choices.items():
                yield from _flags(under, (*verb, name))


def _make(words: list[str], homes: list[Path]) -> list[str]:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return [f"make {word}: there is no such target" for word in words if "=" not in word and word not in targets]


def _pip(words: list[str], homes: list[Path]) -> list[str]:
    known = metadata.metadata("agentcore-rl-toolkit").get_all("Provides-Extra") or []
    asked = [name for word in words for name in re.findall(r"^agentcore-rl-toolkit\[(.*)\]$", word)]
    return [f"the toolkit has no extra {name}" for names in asked for name in names.split(",") if name not in known]


def _cd(words: list[str], homes: list[Path]) -> list[str]:
    homes.extend(place / words[0] for place in list(homes) if (place / words[0]).is_dir())
    return [] if any((place / words[0]).is_dir() for place in homes) else [f"cd {words[0]}: there is no such folder"]


def _python(words: list[str], homes: list[Path]) -> list[str]:
    if not words or not words[0].endswith((".py", ".sh")):
        return []
    scripts = [place / words[0] for place in homes if (place / words[0]).is_file()]
    if not scripts:
        return [] if Path(words[0]).name == "rl_app.py" else [f"{words[0]}: there is no such script"]
    text = scripts[-1].read_text()
    options = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    return [f"{words[0]} has no {option}" for option in options if option.lstrip("-") not in text]


def _ours(word: str) -> bool:
    return word.startswith(OURS)


def _exists(word: str) -> bool:
    return (ROOT / word.partition(":")[0]).exists()


def _dotted(word: str) -> bool:
    return re.fullmatch(r"agentcore_rl_toolkit(\.\w+)+", word) is not None


def importable(word: str) -> bool:
    """Whether there is a module of this name, or something of that name in one."""
    with contextlib.suppress(ModuleNotFoundError):
        if importlib.util.find_spec(word):
            return True
    module, _, name = word.rpartition(".")
    found = importlib.import_module(module)
    return name in getattr(found, "__all__", ()) or hasattr(found, name)


CHECKS = {"agentcore-rl": _agentcore_rl, "make": _make, "pip": _pip, "cd": _cd, "python": _python, "bash": _python}
