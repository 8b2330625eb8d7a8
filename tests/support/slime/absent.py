"""What slime imports and no CPU has: names that can be imported, and nothing behind them. Only for a real checkout."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

ABSENT = ("sglang", "sglang_router", "megatron", "wandb", "pylatexenc", "pybase64", "memray")


class _Absent(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"add_cli_args": staticmethod(lambda *_, **__: None)})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.partition(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def stand_in() -> None:
    """Let the modules that are not here be imported; those that are, are themselves."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # last: what is installed is found before
