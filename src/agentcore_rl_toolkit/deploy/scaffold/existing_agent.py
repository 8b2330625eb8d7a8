"""Adds to an agent's folder what it lacks for training and deployment; files that exist stay as they are.

The agent's code is parsed, never run. `rl_app.py` wraps the entrypoint as it is: it imports the agent when a rollout
runs, because clients that are built on import then call the rollout's model.
"""

from __future__ import annotations

import ast
import keyword
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...rows import held_out_last, parse_rows, read_rows
from .agent_imports import LARGEST_SOURCE, import_root, parse_source, requirements_of, third_party
from .new_agent import read_template

_APP = '''"""The agent of {file} as an RL environment: it runs as it is, and the reward judges its answer."""

{imports}from typing import Any

{path}{preloads}from {reward_module} import {reward}

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()
reward_fn = {reward}()


@app.rollout_entrypoint
{async_}def invoke_agent({parameters}) -> Any:
    {agent}  # here, so that clients it builds on import call the rollout's model

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
            said.append(part.get("{part}", "") if isinstance(part, dict) else part){note}
    if "_rollout" in payload:
        answer = "".join(map(str, said))
        yield {{"response": answer, "rewards": reward_fn(response_text=answer, ground_truth=payload["{truth}"])}}"""
_STRANDS = "  # Strands' events have text in `data`"
_TEXTS = ("answer", "result", "response", "reply", "output", "text", "content", "message", "completion")
"""Usual keys of the answer's text, for agents that return a dict."""
_PARTS = ("delta", "chunk", "token")
"""Usual keys of a piece of it, for agents that stream dicts."""
_TRUTHS = ("answer", "expected", "ground_truth", "expected_answer", "target", "label", "solution", "reference")
"""Usual names of the field with the right answer."""
_PRELOADS = "# The agent's packages, so that sessions share them: importing them in each would take a second.\n"
_PATH = 'sys.path.insert(0, str(Path(__file__).parent / "{root}"))  # where the agent\'s imports start\n\n'
_LARGEST_DATA = 64 << 20


@dataclass(frozen=True)
class Entrypoint:
    """The function that serves an agent's requests."""

    file: Path
    """Relative to the agent's folder."""
    function: ast.FunctionDef | ast.AsyncFunctionDef
    root: Path = Path()
    """The folder that its imports start from, relative to the agent's."""

    @property
    def import_line(self) -> str:
        """The statement that imports it; a file may have a name that an import statement can't have."""
        parts = self.file.relative_to(self.root).with_suffix("").parts
        if all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
            return f"from {'.'.join(parts)} import {self.function.name}"
        return f'{self.function.name} = import_module("{".".join(parts)}").{self.function.name}'

    @property
    def takes_context(self) -> bool:
        """Whether its second parameter is the request's context: by AgentCore's name for it, or because the function
        needs a second argument."""
        parameters = [*self.function.args.posonlyargs, *self.function.args.args]
        needed = len(parameters) - len(self.function.args.defaults) > 1
        return needed or (len(parameters) > 1 and parameters[1].arg == "context")

    @property
    def streams(self) -> bool:
        return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _own_nodes(self.function))

    @property
    def answer_keys(self) -> list[str]:
        """The keys of the dicts that it returns, or yields if it streams."""
        kind = ast.Yield if self.streams else ast.Return
        returned = [node.value for node in _own_nodes(self.function) if isinstance(node, kind)]
        keys = [key for value in returned if isinstance(value, ast.Dict) for key in value.keys]
        return [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]

    @property
    def answer_text(self) -> str:
        """The expression for the text of `answer`."""
        return next((f'answer["{name}"]' for name in _TEXTS if name in self.answer_keys), "answer")

    @property
    def part_key(self) -> str:
        """The key of the text in the dicts that it yields."""
        return next((name for name in ("data", *_TEXTS, *_PARTS) if name in self.answer_keys), "data")

    def app_text(self, preloads: list[str], truth: str, reward: tuple[str, str]) -> str:
        is_async = isinstance(self.function, ast.AsyncFunctionDef)
        has_root = self.root != Path()
        by_name = "from importlib import import_module\n" if "import_module(" in self.import_line else ""
        imports = f"import sys\n{by_name}from pathlib import Path\n" if has_root else by_name
        body = (_STREAMED if self.streams else _WHOLE).format(
            async_="async " if is_async else "",
            await_="await " if is_async else "",
            call=f"{self.function.name}(payload{', context' if self.takes_context else ''})",
            text=self.answer_text,
            part=self.part_key,
            note=_STRANDS if self.part_key == "data" else "",
            truth=truth,
        )
        return _APP.format(
            file=self.file.as_posix(),
            agent=self.import_line,
            imports=imports,
            path=_PATH.format(root=self.root.as_posix()) if has_root else "",
            reward_module=reward[0],
            reward=reward[1],
            preloads=_PRELOADS + "".join(f"import {name}  # noqa: F401\n" for name in preloads) if preloads else "",
            async_="async " if is_async else "",
            body=body,
            parameters="payload: dict[str, Any]" + (", context: Any" if self.takes_context else ""),
        )


def complete_agent(folder: Path, entrypoint: str | None = None) -> tuple[list[Path], str]:
    """Write the files that an agent's folder lacks, and return them with what to know about the reward.
    `entrypoint` is `file.py:function`; the file may be in a package below the folder."""
    note = ""
    named = _named(folder, entrypoint) if entrypoint else None
    paths = {path.relative_to(folder) for path in folder.glob("*.py")} | ({named[0]} if named else set())
    sources = {path: parse_source(folder / path) for path in sorted(paths) if (folder / path).is_file()}
    texts = {".dockerignore": read_template("dockerignore.txt"), "Dockerfile": _dockerfile(folder)}
    roots = [Path()]
    if not (folder / "rl_app.py").exists():
        found = _find_entrypoint(folder, sources, named)
        _refuse_relative_imports(folder, found, sources[found.file])
        _refuse_server(found.file, sources[found.file])
        roots = [Path(), found.root]
        imported = third_party(folder, roots, sources[found.file].body)
        truth, note = _find_truth(folder, sources[found.file])
        reward = _reward_class(sources.get(Path("reward.py")))
        keys = ", ".join(map(repr, dict.fromkeys(found.answer_keys)))
        if keys and found.streams and found.part_key not in found.answer_keys:
            note += f"\nIt finds no text in {keys} of what the agent yields: name the key that has the text there."
        elif keys and not found.streams and found.answer_text == "answer":
            note += f"\nIt judges the whole answer, not one of {keys}: name the key that has the text there."
        app = found.app_text(imported, truth, reward)
        texts = {"rl_app.py": app, f"{reward[0]}.py": read_template("reward.txt")} | texts
    else:
        if named and named[0] != Path("rl_app.py"):
            _check_wrapped(folder / "rl_app.py", _find_entrypoint(folder, sources, named))
        if not (folder / "reward.py").exists():
            texts = {"reward.py": read_template("reward.txt")} | texts
    if not any((folder / name).exists() for name in ("pyproject.toml", "requirements.txt")):
        texts["requirements.txt"] = "\n".join(requirements_of(folder, roots, sources)) + "\n"
    written = [folder / name for name in texts if not (folder / name).exists()]
    for path in written:
        try:
            path.write_text(texts[path.name], encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} can't be written: {error.strerror}") from error
    return written, note


def _named(folder: Path, entrypoint: str) -> tuple[Path, str]:
    """The file and the function of `file.py:function`; the file is relative to the folder."""
    name, _, function = entrypoint.partition(":")
    try:
        return (folder / name).resolve().relative_to(folder.resolve()), function
    except ValueError:
        hint = "name the folder that has both the agent and what it imports"
        raise ConfigError(f"--entrypoint {entrypoint} is not in {folder}", hint=hint) from None


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions and classes in it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _own_nodes(node)


def _reward_class(own: ast.Module | None) -> tuple[str, str]:
    """The module and the class of the reward: the class in the folder's reward.py. A reward.py without one is about
    something else."""
    if own is None:
        return "reward", "MathReward"
    classes = [node for node in own.body if isinstance(node, ast.ClassDef)]
    named = (node.name for node in classes if any("RewardFunction" in ast.unparse(base) for base in node.bases))
    found = next(named, None)
    return ("reward", found) if found else ("rl_reward", "MathReward")


def _find_entrypoint(folder: Path, sources: dict[Path, ast.Module], named: tuple[Path, str] | None) -> Entrypoint:
    """The function that is decorated with `@app.entrypoint`, or the one that was named."""
    found = [
        Entrypoint(path, node, import_root(folder, path, module))
        for path, module in sources.items()
        for node in module.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and ((path, node.name) == named if named else any(map(_is_entrypoint, node.decorator_list)))
    ]
    if len(found) != 1:
        what = f"the function {named[0].as_posix()}:{named[1]}" if named else "a function with @app.entrypoint"
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


def _refuse_server(file: Path, agent: ast.Module) -> None:
    """Importing a file that starts its app's server at once would start it in every rollout."""
    apps = {
        ast.unparse(target)
        for node in agent.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if ast.unparse(node.value.func).endswith("App")
    }
    for node in agent.body:
        called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "run" and ast.unparse(called.value) in apps:
            hint = f'put it below `if __name__ == "__main__":`, so that rl_app.py can import {file}'
            raise ConfigError(f"line {node.lineno} of {file} starts the server when it is imported", hint=hint)


def _check_wrapped(app: Path, named: Entrypoint) -> None:
    if named.import_line not in app.read_text(encoding="utf-8", errors="replace"):
        hint = "leave it out, or remove rl_app.py to have it written anew"
        problem = f"--entrypoint has no effect: {app} exists, and doesn't import {named.function.name} of {named.file}"
        raise ConfigError(problem, hint=hint)


def _find_truth(folder: Path, agent: ast.Module) -> tuple[str, str]:
    """The field with the right answer, and a note about it: one of the usual names, or the only field that the agent
    never reads."""
    named = {node.value for node in ast.walk(agent) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    lacks = []
    for path in sorted(folder.iterdir(), key=lambda path: (path.stem != "rows", held_out_last(path.name))):
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
                rows = parse_rows([file.readline(LARGEST_SOURCE)])[0]
        else:
            rows = read_rows(str(path), 1)[0] if path.stat().st_size <= _LARGEST_DATA else []
    except (OSError, ConfigError):
        return {}
    return rows[0] if rows else {}


def _is_entrypoint(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "entrypoint"


def _dockerfile(folder: Path) -> str:
    """The container of a new agent, with this agent's own list of packages."""
    text = read_template("Dockerfile")
    if (folder / "pyproject.toml").exists():
        return text.replace("./wheels\n\n", "./wheels 'agentcore-rl-toolkit>=0.3'\n\n")
    listed = text.replace("COPY pyproject.toml wheels*", "COPY requirements.txt wheels*")
    packages = "-r wheels/requirements.txt 'agentcore-rl-toolkit>=0.3'"
    return listed.replace("--find-links wheels ./wheels", f"--find-links wheels {packages}")
