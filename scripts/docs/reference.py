"""Writes the pages of docs/reference that say what the code says: the command line, training settings, Python.

python scripts/docs/reference.py            writes them
python scripts/docs/reference.py --check    fails if one of them is out of date
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from python_names import prose, python_page

from agentcore_rl_toolkit.backends.base import find, names
from agentcore_rl_toolkit.backends.settings import LoopSettings, TrainSettings
from agentcore_rl_toolkit.cli import build_parser
from agentcore_rl_toolkit.cli.rollouts.train import parser_for

ROOT = Path(__file__).parents[2]
MADE = "<!-- made by scripts/docs/reference.py -->"


def command_line() -> str:
    """Every verb with its options."""
    parts = ["# Command line", MADE]
    for words, parser in _verbs(build_parser(), ("agentcore-rl",)):
        if words[1:] == ("train",):
            parser = parser_for(find("trl"))
            more = "The options depend on the backend: [all of them](train.md)."
        else:
            more = ""
        parts += [
            f"## {' '.join(words)}",
            prose(parser.description or "", "toml"),
            _examples(parser),
            more,
            _options(parser),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def training_settings() -> str:
    """Every setting of every backend."""
    backends = {name: find(name).settings for name in names()}
    seen: dict[str, Any] = {}
    classes: list[type[TrainSettings]] = [TrainSettings, LoopSettings, *backends.values()]
    for settings in classes:
        for spec in dataclasses.fields(settings):
            seen.setdefault(spec.name, spec)
    tables: dict[str, list[str]] = {}
    for name, spec in seen.items():
        takers = [b for b, settings in backends.items() if name in {s.name for s in dataclasses.fields(settings)}]
        several = 1 < len(takers) < len(backends)
        of = "Several backends" if several else takers[0] if len(takers) == 1 else "All backends"
        table = tables.setdefault(of, ["| setting | what it does | default |", "|---|---|---|"])
        also = f", `{spec.metadata['alias']}`" if spec.metadata["alias"] else ""
        defaults = {b: _default(settings, name) for b, settings in backends.items() if b in takers}
        others = [f"{b}: {shown or 'none'}" for b, shown in defaults.items() if shown != _shown(spec.default)]
        default = ", ".join([_shown(spec.default), *others] if _shown(spec.default) else others)
        limited = f" ({', '.join(takers)})" if several else ""
        table.append(f"| `{name}`{also} | {_cell(spec.metadata['help'])}{limited} | {default} |")
    text = """\
Every setting is an option of `agentcore-rl train --backend NAME` (`rows_per_step` is `--rows-per-step`), a name in a
TOML or YAML file (`--config`), and a field of the backend's settings in Python. The command line wins. A second name is
what trainers' own files call the setting; files may use it."""
    sections = [part for of, rows in tables.items() for part in (f"## {of}", "\n".join(rows))]
    return "\n\n".join(["# Training settings", MADE, text, *sections]) + "\n"


def python() -> str:
    """The public names."""
    page: str = python_page(MADE)
    return page


PAGES = {"cli.md": command_line, "train.md": training_settings, "python.md": python}


def _default(settings: type[TrainSettings], name: str) -> str:
    return next(_shown(spec.default) for spec in dataclasses.fields(settings) if spec.name == name)


def _shown(default: Any) -> str:
    return "" if default in (None, "", (), dataclasses.MISSING) else f"`{default}`"


def _verbs(
    parser: argparse.ArgumentParser, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not found:
        yield words, parser
    for action in found:
        for name, verb in action.choices.items():
            yield from _verbs(verb, (*words, name))


def _examples(parser: argparse.ArgumentParser) -> str:
    """The command lines at the end of the help."""
    lines = [line.strip() for line in (parser.epilog or "").splitlines()[1:]]
    return "\n".join(["<!-- not run: examples of the help -->", "```bash", *lines, "```"]) if lines else ""


def _options(parser: argparse.ArgumentParser) -> str:
    rows = ["| option | what |", "|---|---|"]
    for action in parser._actions:
        if action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
            continue
        shown = (
            ", ".join(f"`{flag}`" for flag in action.option_strings)
            or f"`{str(action.metavar or action.dest).upper()}`"
        )
        if action.choices is not None:
            shown += f" `{'|'.join(map(str, action.choices))}`"
        elif action.option_strings and action.nargs != 0:
            shown += f" `{action.metavar or action.dest.upper()}`"
        rows.append(f"| {_cell(shown)} | {_cell((action.help or '').replace('%%', '%'))} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _cell(text: str) -> str:
    """A help text for a table. Outside of code, `*` and `<` would be formatting: `<account>` would not be seen."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def main() -> int:
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / "docs" / "reference" / name, make()
        if "--check" in sys.argv and (not path.exists() or path.read_text() != text):
            stale.append(name)
        elif "--check" not in sys.argv:
            path.write_text(text)
    if stale:
        print(f"out of date: {', '.join(stale)}\nhint: make reference", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
