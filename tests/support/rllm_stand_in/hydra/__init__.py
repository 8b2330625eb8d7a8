"""Hydra's command line and `compose`, over one JSON file of defaults."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .errors import ConfigCompositionException

_module: list[str] = []


class Node(dict[str, Any]):
    """A table whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@contextlib.contextmanager
def initialize_config_module(config_module: str, version_base: str | None) -> Iterator[None]:
    _module.append(config_module)
    try:
        yield
    finally:
        _module.pop()


def compose(config_name: str, overrides: list[str]) -> Node:
    text = importlib.resources.files(_module[-1]).joinpath(f"{config_name}.json").read_text()
    config = json.loads(text, object_hook=Node)
    for override in overrides:
        name, _, value = override.partition("=")
        if name != "rllm/backend" and not name.startswith("hydra."):
            _put(config, name, value)
    return config


def main(config_path: str, config_name: str, version_base: str | None) -> Callable[[Any], Callable[[], None]]:
    def decorated(task: Callable[[Node], None]) -> Callable[[], None]:
        def run() -> None:
            with initialize_config_module(config_path.removeprefix("pkg://"), version_base):
                config = compose(config_name, sys.argv[1:])
            task(config)

        return run

    return decorated


def _put(config: Node, override: str, value: str) -> None:
    node, name = config, override.lstrip("+")
    *tables, last = name.split(".")
    for table in tables:
        if table not in node and override.startswith("+"):
            node[table] = Node()
        node = node.get(table, Node())
    if last not in node and not override.startswith("+"):
        raise ConfigCompositionException(f"Could not override '{name}'.\nTo append to your config use +{override}")
    try:
        node[last] = json.loads(value)
    except ValueError:
        node[last] = value[1:-1] if value.startswith("'") else value
