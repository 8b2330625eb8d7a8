"""Writes the pages of docs/reference that say what the code says: the command line, training settings, Python.

python scripts/docs/reference.py            writes them
python scripts/docs/reference.py --check    fails if one of them is out of date
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agentcore_rl_toolkit
from agentcore_rl_toolkit import rollout
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
        parts += [f"## {' '.join(words)}", _prose(parser.description or ""), _examples(parser), more, _options(parser)]
    return "\n\n".join(part for part in parts if part) + "\n"


def training_settings() -> str:
    """Every setting of every backend."""
    backends = {name: find(name).settings for name in names()}
    rows = ["| setting | also called | default | backends | what |", "|---|---|---|---|---|"]
    seen: dict[str, Any] = {}
    classes: list[type[TrainSettings]] = [TrainSettings, LoopSettings, *backends.values()]
    for settings in classes:
        for spec in dataclasses.fields(settings):
            seen.setdefault(spec.name, spec)
    for name, spec in seen.items():
        takers = [b for b, settings in backends.items() if name in {s.name for s in dataclasses.fields(settings)}]
        also = f"`{spec.metadata['alias']}`" if spec.metadata["alias"] else ""
        defaults = {b: _default(settings, name) for b, settings in backends.items() if b in takers}
        others = [f"{b}: {shown}" for b, shown in defaults.items() if shown != _shown(spec.default)]
        default = ", ".join([_shown(spec.default), *others] if _shown(spec.default) else others)
        shown = "all" if len(takers) == len(backends) else ", ".join(takers)
        rows.append(f"| `{name}` | {also} | {default} | {shown} | {_cell(spec.metadata['help'])} |")
    text = """\
Every setting is an option of `agentcore-rl train --backend NAME` (`rows_per_step` is `--rows-per-step`), a name in a
TOML or YAML file (`--config`), and a field of the backend's settings in Python. The command line wins. Names in the
second column are those that trainers' own files have for the same; files may use them."""
    return "\n\n".join(["# Training settings", MADE, text, "\n".join(rows)]) + "\n"


def python() -> str:
    """The public names."""
    parts = ["# Python", MADE, "What `import agentcore_rl_toolkit` has; other modules may change with any version."]
    for name in agentcore_rl_toolkit.__all__:
        parts += _described(f"agentcore_rl_toolkit.{name}", getattr(agentcore_rl_toolkit, name))
    parts.append("## agentcore_rl_toolkit.rollout")
    for name in rollout.__all__:
        parts += _described(f"rollout.{name}", getattr(rollout, name), "###")
    return "\n\n".join(parts) + "\n"


PAGES = {"cli.md": command_line, "train.md": training_settings, "python.md": python}


def _default(settings: type[TrainSettings], name: str) -> str:
    return next(_shown(spec.default) for spec in dataclasses.fields(settings) if spec.name == name)


def _shown(default: Any) -> str:
    return "" if default in (None, "", dataclasses.MISSING) else f"`{default}`"


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


def _described(title: str, value: Any, mark: str = "##") -> list[str]:
    parts = [f"{mark} {title}"]
    if callable(value):
        signature = _plain(str(inspect.signature(value)))
        parts.append(f"```python\n{title.rpartition('.')[2]}{_wrapped(signature)}\n```")
        parts.append(_prose(inspect.getdoc(value) or ""))
    else:
        parts += _constant(title.rpartition(".")[2])
    if inspect.isclass(value):
        parts.append("\n".join(_methods(value)))
    return [part for part in parts if part]


def _constant(name: str) -> list[str]:
    """A constant as it is written, and what is written below it."""
    for path in sorted(Path(rollout.__file__).parent.glob("*.py")):
        text = path.read_text()
        for statement, below in itertools.pairwise(ast.parse(text).body):
            if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
                said = ast.literal_eval(ast.unparse(below))
                return [f"```python\n{ast.get_source_segment(text, statement)}\n```", _prose(said)]
    raise LookupError(name)


def _methods(value: type) -> Iterator[str]:
    """What a class has of its own, one line each."""
    for name, member in vars(value).items():
        if name.startswith("_") or inspect.getdoc(member) is None or not hasattr(member, "__doc__"):
            continue
        if isinstance(member, property):
            yield f"- `{name}`: {_first(member)}"
        elif inspect.isfunction(getattr(value, name)) or inspect.ismethod(getattr(value, name)):
            signature = (
                _plain(str(inspect.signature(getattr(value, name)))).replace("(self, ", "(").replace("(self)", "()")
            )
            yield f"- `{name}{signature}`: {_first(member)}"


def _first(member: Any) -> str:
    return (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ")


def _plain(signature: str) -> str:
    """Without the quotes that annotations have here."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r" at 0x[0-9a-f]+", "", signature))


def _wrapped(signature: str) -> str:
    """A long signature, one parameter a line."""
    if len(signature) < 90:
        return signature
    depth, lines, line = 0, [], ""
    for character in signature:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 1:
            lines.append(line + ",")
            line = ""
        else:
            line += character
    lines.append(line)
    first, rest = lines[0], [part.strip() for part in lines[1:]]
    return "\n    ".join([first.replace("(", "(\n    ", 1), *rest])


def _prose(text: str) -> str:
    """A docstring as Markdown: examples are Python, and indented parts are TOML."""
    text = inspect.cleandoc(text).replace("%%", "%")
    out, code = [], False
    for line in text.splitlines():
        coded = line.startswith(("    ", ">>>")) or (code and bool(line.strip()))
        if coded != code:
            out.append("```" if code else "```python" if line.startswith(">>>") else "```toml")
            code = coded
        out.append(line.removeprefix("    ") if code else line)
    return "\n".join([*out, "```"] if code else out)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


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
