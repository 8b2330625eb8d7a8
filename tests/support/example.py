"""The modules of an example, imported from its folder as the agent's process imports them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
MATH_AGENT = EXAMPLES / "strands_math_agent"
MIGRATION_AGENT = EXAMPLES / "strands_migration_agent"


@cache
def example(path: str) -> Any:
    """`example("strands_math_agent/reward.py")`, under its own name: other folders have a `reward` too."""
    file = EXAMPLES / path
    spec = importlib.util.spec_from_file_location(f"example_{file.parent.name}_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(folder: str, name: str) -> Any:
    """`package("strands_officebench_agent", "office.tasks")`: a module of a package in an example's folder."""
    home = str(EXAMPLES / folder)
    sys.path.insert(0, home)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(home)
