"""The page of the public Python names: signatures, docstrings, fields and methods, module by module."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TypeGuard

PACKAGE = "agentcore_rl_toolkit"
PUBLIC: dict[str, tuple[str, ...]] = {
    "": (),
    ".rewards": (),
    ".rollout": (),
    ".rollout.run_folder": ("Entry", "Run", "open_run"),
    ".rows": ("read_rows",),
    ".client.evaluation": ("Comparison", "Outcome", "Summary", "compare", "summarize"),
    ".runtime": (),
    ".runtime.local": (),
    ".runtime.ray": ("RayRuntime",),
    ".engine": (),
    ".engine.scripted": ("ScriptedEngine", "ScriptedLine"),
    ".engine.tiny": ("path",),
    ".engine.transformers": (),
    ".backends.trl": (),
    ".backends.tinker": ("TinkerSettings", "train"),
    ".backends.verl": ("VerlSettings",),
    ".backends.slime": ("SlimeRunner", "SlimeSettings"),
    ".backends.rllm": ("RllmSettings",),
    ".backends.sagemaker": (),
    ".backends.sagemaker.session": (),
    ".studio.guards": ("Finding", "RolloutFacts", "RunFacts", "StepFacts"),
}
"""The modules that users may rely on, with their public names; `()` means those of `__all__`."""

_INTRODUCTION = """\
The names that you may rely on, each under the module to import it from; anything else may change with any version. The
settings that backends share are described in [Training settings](train.md)."""


def python_page(made: str) -> str:
    """The page; `made` marks pages that are made from the code."""
    parts = ["# Python", made, _INTRODUCTION]
    for below, listed in PUBLIC.items():
        module = importlib.import_module(PACKAGE + below)
        parts += [f"## {PACKAGE}{below}", prose(_paragraph(module))]
        for name in listed or module.__all__:
            parts += _described(module, name)
    errors = importlib.import_module(f"{PACKAGE}.errors")
    first, tree, last = inspect.cleandoc(errors.__doc__ or "").split("\n\n")
    parts += [
        f"## {PACKAGE}.errors",
        first,
        f"<!-- not run: a drawing -->\n```text\n{textwrap.dedent(tree)}\n```",
        last,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def prose(text: str, indented: str = "python") -> str:
    """A docstring as Markdown, with the language of its indented parts; examples are Python."""
    text = inspect.cleandoc(text).replace("%%", "%")
    out, code = [], False
    for line in text.splitlines():
        coded = line.startswith(("    ", ">>>")) or (code and bool(line.strip()))
        if coded != code:
            out.append("```" if code else "```python" if line.startswith(">>>") else f"```{indented}")
            code = coded
        out.append(line.removeprefix("    ") if code else line)
    return "\n".join([*out, "```"] if code else out)


def _described(module: ModuleType, name: str) -> list[str]:
    value, parts = getattr(module, name), [f"### {name}"]
    if not callable(value):
        return parts + _constant(module, name)
    if not _is_enum(value) and not getattr(value, "_is_protocol", False):
        parts.append(f"```python\n{name}{_wrapped(_plain(str(inspect.signature(value))))}\n```")
    parts.append(prose(inspect.getdoc(value) or ""))
    if inspect.isclass(value):
        members = [f"- `{name}.{one.name}`: `{one.value!r}`" for one in value] if _is_enum(value) else []
        parts += ["\n".join([*members, *_fields(value), *_methods(value)])]
    return parts


def _is_enum(value: Any) -> TypeGuard[type[enum.Enum]]:
    return inspect.isclass(value) and issubclass(value, enum.Enum)


def _constant(module: ModuleType, name: str) -> list[str]:
    """A constant as it is written, and what is written below it."""
    sources = [module, *(found for found in vars(module).values() if inspect.ismodule(found))]
    for source in map(inspect.getsource, sources):
        for statement, below in itertools.pairwise(ast.parse(source).body):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            if name in (ast.unparse(target) for target in targets if target) and isinstance(below, ast.Expr):
                said = ast.literal_eval(below.value)
                return [f"```python\n{ast.get_source_segment(source, statement)}\n```", prose(said)]
    raise LookupError(f"nothing is written below {name} of {module.__name__}")


def _fields(value: type) -> Iterator[str]:
    """A dataclass's own fields, with what is written below each, or with their help."""
    if not dataclasses.is_dataclass(value):
        return
    body = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(body, ast.ClassDef)
    said = {spec.name: str(spec.metadata.get("help", "")) for spec in dataclasses.fields(value)}
    for statement, below in itertools.pairwise([*body.body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and (name := ast.unparse(statement.target)) in said:
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                said[name] = inspect.cleandoc(str(below.value.value))
            if said[name]:
                yield f"- `{name}`: {' '.join(said[name].split())}"


def _methods(value: type) -> Iterator[str]:
    """What a class has of its own and from an abstract base, one line each."""
    package = value.__module__.partition(".")[0]
    bases = [
        base for base in reversed(value.__mro__) if inspect.isabstract(base) and base.__module__.startswith(package)
    ]
    members = {name: member for kind in (*bases, value) for name, member in vars(kind).items()}
    for name, member in members.items():
        if name.startswith("_") or inspect.getdoc(member) is None or not hasattr(member, "__doc__"):
            continue
        if isinstance(member, property):
            yield f"- `{name}`: {_paragraph(member)}"
        elif inspect.isfunction(getattr(value, name)) or inspect.ismethod(getattr(value, name)):
            signature = _plain(str(inspect.signature(getattr(value, name))))
            signature = signature.replace("(self, ", "(").replace("(self)", "()")
            yield f"- `{name}{signature}`: {_paragraph(member)}"


def _paragraph(member: Any) -> str:
    return (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ")


def _plain(signature: str) -> str:
    """Without addresses, and without the quotes that annotations have here."""
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
