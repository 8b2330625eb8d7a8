"""Every exception class of the package, found by walking it."""

from __future__ import annotations

import ast
import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import errors

PACKAGE = Path(errors.__file__).parent
OURS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, BaseException)]
ALONE = {PACKAGE / "rewards" / "_child.py"}
"""A script that imports nothing of ours, so it has its own exception."""


def exception_classes(path: Path) -> Iterator[str]:
    """The classes in a file that are exceptions by their bases' names."""
    known = {kind.__name__ for kind in OURS}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if any(base in known or base.endswith(("Error", "Exception", "Warning")) for base in bases):
                yield node.name


def test_every_exception_is_in_one_module() -> None:
    found = {path: list(exception_classes(path)) for path in PACKAGE.rglob("*.py")}
    homes = {path for path, names in found.items() if names}
    assert homes == {PACKAGE / "errors.py"} | ALONE
    assert sorted(found[PACKAGE / "errors.py"]) == sorted(kind.__name__ for kind in OURS)


def attributes(kind: type[BaseException]) -> dict[str, Any]:
    """A value that differs from the default, for every argument beside the message."""
    values = {"code": "ThrottlingException", "reason": "agent", "retry_after": 1.5, "status": 418, "allow": ("GET",)}
    values |= {"param": "messages", "sampled_any": True, "hint": "repair it", "passing": True}
    return {name: values[name] for name in list(inspect.signature(kind).parameters)[1:]}


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_exception_survives_pickling_with_its_attributes(kind: type[BaseException]) -> None:
    error = kind("it broke", **attributes(kind))
    assert isinstance(error, errors.AgentCoreRLError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error) == "it broke\nhint: repair it"
    assert vars(copy) == vars(error)
    properties = [name for name, value in inspect.getmembers(kind) if isinstance(value, property)]
    assert [getattr(copy, name) for name in properties] == [getattr(error, name) for name in properties]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_the_docstring_draws_the_tree(kind: type[BaseException]) -> None:
    assert f" {kind.__name__} " in str(errors.__doc__)


def test_the_name_most_like_a_mistyped_one_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "train.csv").touch()
    assert errors.suggest_path("trian.csv") == "did you mean train.csv?"
    assert errors.suggest_path("./run/") == "did you mean ./runs?"
    assert errors.suggest_path("runs/frist") == "did you mean runs/first?"
    assert errors.suggest_path("runs/other") is None
    assert errors.suggest_path("nowhere/first") is None
