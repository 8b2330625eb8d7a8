"""What an agent imports: where its own modules are, and which packages it needs. Its code is parsed, never run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from ...errors import ConfigError

LARGEST_SOURCE = 1 << 20


def parse_source(path: Path) -> ast.Module:
    try:
        with path.open("rb") as file:
            return ast.parse(file.read(LARGEST_SOURCE), filename=str(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} can't be read as Python: {error}") from None


def import_root(folder: Path, file: Path, agent: ast.Module) -> Path:
    """The folder that an agent's imports start from: `src`, as packages are laid out, or the one in which the file
    finds what it imports, and the agent's folder has not."""
    if file.parts[0] == "src" and not (folder / "src" / "__init__.py").exists():
        return Path("src")
    names = {name.partition(".")[0] for name in _imported(agent.body)} - sys.stdlib_module_names
    missing = [name for name in names if not _has_module(folder, name)]
    found = (root for root in file.parents if any(_has_module(folder / root, name) for name in missing))
    return next(found, Path())


def _has_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The modules that the import statements among the nodes name, but for those relative to a package."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def third_party(folder: Path, roots: list[Path], nodes: Iterable[ast.AST]) -> list[str]:
    """The modules that are imported, without Python's own and the agent's."""
    own = {path.stem for root in roots for path in (folder / root).iterdir()} | set(sys.stdlib_module_names)
    return sorted({name for name in _imported(nodes) if name.partition(".")[0] not in own})


def requirements_of(folder: Path, roots: list[Path], sources: dict[Path, ast.Module]) -> list[str]:
    """The installed packages that the agent imports, from the versions that are installed here on."""
    homes = metadata.packages_distributions()
    nodes = [node for module in _with_own_imports(folder, roots, sources) for node in ast.walk(module)]
    needed = {home for name in third_party(folder, roots, nodes) for home in _home(homes, name)}
    return sorted({"agentcore-rl-toolkit>=0.3"} | {f"{name}>={metadata.version(name)}" for name in needed})


def _with_own_imports(folder: Path, roots: list[Path], sources: dict[Path, ast.Module]) -> Iterator[ast.Module]:
    """The files, and those of the agent's that they import, and so on."""
    seen = set(sources)
    pending = list(sources.items())
    while pending:
        file, module = pending.pop()
        yield module
        found = {path for node in ast.walk(module) for path in _files_of(file, roots, node)} - seen
        seen |= found
        pending += [(path, parse_source(folder / path)) for path in sorted(found) if (folder / path).is_file()]


def _files_of(file: Path, roots: list[Path], node: ast.AST) -> Iterator[Path]:
    """The files that an import statement in `file` may load."""
    if isinstance(node, ast.Import):
        bases, modules = roots, [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        bases = [file.parents[node.level - 1]] if 0 < node.level <= len(file.parents) else roots
        start = f"{node.module}." if node.module else ""
        modules = [f"{start}{alias.name}" for alias in node.names]
    else:
        return
    for base in bases:
        for module in modules:
            parts = module.split(".")
            for end in range(1, len(parts) + 1):
                path = base.joinpath(*parts[:end])
                yield from (path.with_name(f"{path.name}.py"), path / "__init__.py")


def _home(homes: Mapping[str, list[str]], module: str) -> list[str]:
    """The distributions that have a module. Of those that share a namespace: the one that is named like the module's
    second part, and the one that is named like the first, which the others may need."""
    top, _, rest = module.partition(".")
    found = sorted(set(homes.get(top, ())) - {"agentcore-rl-toolkit"})
    close = [name for name in found if name.replace("-", "_").endswith(rest.partition(".")[0])] if rest else []
    return sorted({name for name in found if name == top} | set(close[:1])) or found[:1]
