"""Adds to an agent's folder what it lacks for training and deployment; files that exist stay as they are.

The agent's code is parsed, never run. `rl_app.py` wraps the entrypoint as it is: it imports the agent when a rollout
runs, because clients that are built on import then call the rollout's model.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...rows import parse_rows, read_rows
from .new_agent import read_template

_APP = '''"""The agent of {file} as an RL environment: it runs as it is, and the reward judges its answer."""

from typing import Any

{preloads}from reward import MathReward

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()
reward_fn = MathReward()


@app.rollout_entrypoint
{async_}def invoke_agent({parameters}) -> Any:
    from {module} import {name}  # here, so that clients it builds on import call the rollout's model

{body}


if __name__ == "__main__":
    app.run()
'''
_WHOLE = """    answer = {await_}{call}
    if "_rollout" not in payload:
        return answer
    return {{"response": answer, "rewards": reward_fn(response_text=str({text}), ground_truth=payload["{truth}"])}}"""
_STREAMED = """    said = []
    {async_}for part in {call}:
        if "_rollout" not in payload:
            yield part
        else:
            said.append(part.get("data", "") if isinstance(part, dict) else part)  # Strands' events have text in `data`
    if "_rollout" in payload:
        answer = "".join(map(str, said))
        yield {{"response": answer, "rewards": reward_fn(response_text=answer, ground_truth=payload["{truth}"])}}"""
_TEXTS = ("answer", "result", "response", "reply", "output", "text", "content", "message", "completion")
"""Usual keys of the answer's text, for agents that return a dict."""
_TRUTHS = ("answer", "expected", "ground_truth", "expected_answer", "target", "label", "solution", "reference")
"""Usual names of the field with the right answer."""
_PRELOADS = "# The agent's packages, so that sessions share them: importing them in each would take a second.\n"
_LARGEST_SOURCE = 1 << 20
_LARGEST_DATA = 64 << 20


@dataclass(frozen=True)
class Entrypoint:
    """The function that serves an agent's requests."""

    file: Path
    """Relative to the agent's folder."""
    function: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def module(self) -> str:
        return ".".join(self.file.with_suffix("").parts)

    @property
    def streams(self) -> bool:
        return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(self.function))

    @property
    def answer_keys(self) -> list[str]:
        """The keys of the dicts that it returns."""
        returned = [node.value for node in ast.walk(self.function) if isinstance(node, ast.Return)]
        keys = [key for value in returned if isinstance(value, ast.Dict) for key in value.keys]
        return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]

    @property
    def answer_text(self) -> str:
        """The expression for the text of `answer`."""
        return next((f'answer["{name}"]' for name in _TEXTS if name in self.answer_keys), "answer")

    def app_text(self, preloads: list[str], truth: str) -> str:
        is_async = isinstance(self.function, ast.AsyncFunctionDef)
        with_context = len(self.function.args.args) > 1
        body = (_STREAMED if self.streams else _WHOLE).format(
            async_="async " if is_async else "",
            await_="await " if is_async else "",
            call=f"{self.function.name}(payload{', context' if with_context else ''})",
            text=self.answer_text,
            truth=truth,
        )
        return _APP.format(
            file=self.file.as_posix(),
            module=self.module,
            name=self.function.name,
            preloads=_PRELOADS + "".join(f"import {name}  # noqa: F401\n" for name in preloads) if preloads else "",
            async_="async " if is_async else "",
            body=body,
            parameters="payload: dict[str, Any]" + (", context: Any" if with_context else ""),
        )


def complete_agent(folder: Path, entrypoint: str | None = None) -> tuple[list[Path], str]:
    """Write the files that an agent's folder lacks, and return them with what to know about the reward.
    `entrypoint` is `file.py:function`; the file may be in a package below the folder."""
    note = ""
    named = {folder / entrypoint.partition(":")[0]} if entrypoint else set()
    paths = sorted({*folder.glob("*.py"), *(path for path in named if path.is_file())})
    sources = {path.relative_to(folder): _parse(path) for path in paths}
    texts = {
        "reward.py": read_template("reward.txt"),
        ".dockerignore": read_template("dockerignore.txt"),
        "Dockerfile": _dockerfile(folder),
    }
    if not (folder / "rl_app.py").exists():
        found = _find_entrypoint(sources, entrypoint)
        _refuse_relative_imports(folder, found, sources[found.file])
        imported = _third_party(folder, {found.file: sources[found.file]})
        truth, note = _find_truth(folder, sources[found.file])
        if found.answer_keys and found.answer_text == "answer":
            keys = ", ".join(map(repr, dict.fromkeys(found.answer_keys)))
            note += f"\nIt judges the whole answer, not one of {keys}: name the key that has the text there."
        texts = {"rl_app.py": found.app_text(imported, truth)} | texts
    if not any((folder / name).exists() for name in ("pyproject.toml", "requirements.txt")):
        texts["requirements.txt"] = "\n".join(_requirements(folder, sources)) + "\n"
    written = [folder / name for name in texts if not (folder / name).exists()]
    for path in written:
        try:
            path.write_text(texts[path.name], encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} can't be written: {error.strerror}") from error
    return written, note


def _parse(path: Path) -> ast.Module:
    try:
        with path.open("rb") as file:
            return ast.parse(file.read(_LARGEST_SOURCE), filename=str(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} can't be read as Python: {error}") from None


def _find_entrypoint(sources: dict[Path, ast.Module], named: str | None) -> Entrypoint:
    """The function that is decorated with `@app.entrypoint`, or the one that was named."""
    file, _, name = (named or "").partition(":")
    found = [
        Entrypoint(path, node)
        for path, module in sources.items()
        for node in module.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and ((path.as_posix(), node.name) == (file, name) if named else any(map(_is_entrypoint, node.decorator_list)))
    ]
    if len(found) != 1:
        what = f"the function {named}" if named else "a function with @app.entrypoint"
        many = f"{len(found)} of them" if found else "none"
        hint = "name the function that takes a request's payload: --entrypoint agent.py:answer"
        raise ConfigError(f"init looks for {what}, and found {many}", hint=hint)
    return found[0]


def _refuse_relative_imports(folder: Path, found: Entrypoint, agent: ast.Module) -> None:
    """A file beside rl_app.py is imported by itself, so it can't import relative to a package."""
    relative = (node.lineno for node in ast.walk(agent) if isinstance(node, ast.ImportFrom) and node.level)
    line = next(relative, None) if found.file.parent == Path() else None
    if line is not None:
        package = folder.resolve()
        named = f"{package.name}/{found.file}:{found.function.name}"
        hint = f"agentcore-rl init {os.path.relpath(package.parent)} --entrypoint {named}"
        raise ConfigError(f"line {line} of {found.file} imports relative to its package {package.name}", hint=hint)


def _find_truth(folder: Path, agent: ast.Module) -> tuple[str, str]:
    """The field with the right answer, and a note about it: one of the usual names, or the only field that the agent
    never reads."""
    named = {node.value for node in ast.walk(agent) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    lacks = []
    for path in sorted(folder.iterdir(), key=lambda path: (path.stem != "rows", path.name)):
        row = _first_row(path)
        unread = [name for name in row if name not in named]
        if found := [name for name in _TRUTHS if name in row] or (unread if len(unread) == 1 < len(row) else []):
            field = found[0]
            return field, f"rl_app.py compares answers with {field!r} of the rows in {path.name}."
        if row:
            lacks.append(f"{path.name}, which has {', '.join(map(repr, row))}")
    where = f"not in {lacks[0]}" if lacks else "a guess, because there are no rows here"
    return "answer", f"rl_app.py compares answers with 'answer' of a row ({where}): name the right field there."


def _first_row(path: Path) -> dict[str, Any]:
    """The first row of a data set; empty if it is none, or too large to look into."""
    if path.suffix not in (".jsonl", ".csv", ".json", ".parquet") or not path.is_file():
        return {}
    try:
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8", errors="replace") as file:
                rows = parse_rows([file.readline(_LARGEST_SOURCE)])[0]
        else:
            rows = read_rows(str(path), 1)[0] if path.stat().st_size <= _LARGEST_DATA else []
    except (OSError, ConfigError):
        return {}
    return rows[0] if rows else {}


def _is_entrypoint(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "entrypoint"


def _third_party(folder: Path, sources: dict[Path, ast.Module]) -> list[str]:
    """The modules that the agent imports at the top of its files, without Python's own and the folder's."""
    found = set()
    for module in sources.values():
        for node in module.body:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module)
    own = {path.stem for path in folder.iterdir()} | set(sys.stdlib_module_names)
    return sorted(name for name in found if name.partition(".")[0] not in own)


def _requirements(folder: Path, sources: dict[Path, ast.Module]) -> list[str]:
    """The installed packages that the agent imports, from the versions that are installed here on."""
    homes = metadata.packages_distributions()
    needed = {home for name in _third_party(folder, sources) for home in _home(homes, name)}
    return sorted({"agentcore-rl-toolkit>=0.3"} | {f"{name}>={metadata.version(name)}" for name in needed})


def _home(homes: Mapping[str, list[str]], module: str) -> list[str]:
    """The distributions that have a module. Of those that share a namespace: the one that is named like the module's
    second part, and the one that is named like the first, which the others may need."""
    top, _, rest = module.partition(".")
    found = sorted(set(homes.get(top, ())) - {"agentcore-rl-toolkit"})
    close = [name for name in found if name.replace("-", "_").endswith(rest.partition(".")[0])] if rest else []
    return sorted({name for name in found if name == top} | set(close[:1])) or found[:1]


def _dockerfile(folder: Path) -> str:
    """The container of a new agent, with this agent's own list of packages."""
    text = read_template("Dockerfile")
    if (folder / "pyproject.toml").exists():
        return text.replace("./wheels\n\n", "./wheels 'agentcore-rl-toolkit>=0.3'\n\n")
    listed = text.replace("COPY pyproject.toml wheels*", "COPY requirements.txt wheels*")
    packages = "-r wheels/requirements.txt 'agentcore-rl-toolkit>=0.3'"
    return listed.replace("--find-links wheels ./wheels", f"--find-links wheels {packages}")
