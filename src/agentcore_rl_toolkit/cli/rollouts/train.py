"""`agentcore-rl train AGENT --data rows.jsonl --model MODEL`: train an agent's policy with GRPO.

AGENT is an ARN, a Python file or a folder, as for `rollout`. MODEL is a folder, a hub id, or `tiny`, the built-in
policy. Settings may also come from a TOML or YAML file (`--config`), with the names of the options; the command line
wins. The options are those of the backend that is chosen.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...backends.base import Backend, find, names
from ...backends.settings import TrainSettings
from ...errors import ConfigError
from ...rows import rows_of
from ..terminal.sandbox_arguments import variables

DEFAULT = "trl"
_METAVARS = {"failures": "STATUS=ACTION", "env": "NAME[=VALUE]", "allow": "HOST:PORT"}


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb; its options depend on the backend, and are read by `run`."""
    parser = subparsers.add_parser("train", help="train an agent's policy", add_help=False, allow_abbrev=False)
    _add_choice(parser, argparse.SUPPRESS)
    parser.set_defaults(run=run, rest=[])


def run(args: argparse.Namespace) -> int:
    """Train; exit with 1 if it fails, 130 if it was interrupted, 143 if it was asked to end by SIGTERM."""
    backend, settings, dry = read(args.backend, args.config, args.rest)
    try:
        if dry:
            print(backend.plan(settings).text())
            return 0
        summary = backend.train(settings)
    except ImportError as error:
        raise ConfigError(str(error)) from error
    if os.environ.get("RANK", "0") == "0":  # of several processes, one tells
        print(json.dumps({name: summary[name] for name in summary if name != "examples"}))
    return int(summary.get("exit_code") or (130 if summary.get("interrupted") else 0))


def read(name: str | None, config: str | None, rest: Sequence[str]) -> tuple[Backend, TrainSettings, bool]:
    """The backend, the settings of a command line, and whether it is only to be shown."""
    known = read_file(Path(config)) if config else {}
    backend = find(name or known.pop("backend", None) or DEFAULT)
    known.pop("backend", None)
    parser = parser_for(backend)
    given = {name: value for name, value in vars(parser.parse_args(rest)).items() if value is not None}
    dry = bool(given.pop("dry_run", False))
    given.pop("backend", None)
    given.pop("config", None)
    for table in _tables(backend.settings):
        if table in given:
            told = given[table]
            pairs = variables(told) if table == "env" else dict(_pair(table, text) for text in told)
            given[table] = dict(known.get(table) or {}) | pairs
    settings = backend.settings.from_mapping(known | _renamed(backend.settings, known, given))
    if not settings.agent:
        raise ConfigError("agent is missing", hint="agentcore-rl train AGENT --data rows.jsonl")
    if not settings.data:
        settings = dataclasses.replace(settings, data=rows_of(settings.agent))
    return backend, settings, dry


def parser_for(backend: Backend) -> argparse.ArgumentParser:
    """The options of `train` with one backend: the fields of its settings."""
    shown = "" if backend.name == DEFAULT else f" --backend {backend.name}"
    parser = argparse.ArgumentParser(prog=f"agentcore-rl train{shown}", description=__doc__, allow_abbrev=False)
    parser.add_argument("agent", nargs="?", help="an ARN, or the path of an agent (rl_app.py)")
    _add_choice(parser, f"the trainer: {', '.join(names())} (default: {DEFAULT})")
    parser.add_argument("--dry-run", action="store_true", help="check, show what would be done, and do nothing")
    kinds = typing.get_type_hints(backend.settings)
    for spec in dataclasses.fields(backend.settings):
        if spec.name != "agent":
            _add_option(parser, spec, kinds[spec.name])
    return parser


def read_file(path: Path) -> dict[str, Any]:
    """The settings of a TOML or YAML file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    kind, load, problem = _yaml() if path.suffix in (".yaml", ".yml") else _toml()
    try:
        values = load(text)
    except problem as error:
        raise ConfigError(f"{path} is no {kind}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} has no settings: it holds a {type(values).__name__}", hint="write: name = value")
    return values


def _add_choice(parser: argparse.ArgumentParser, help: str) -> None:
    """What has to be known before the backend's own options can be read."""
    parser.add_argument("--backend", metavar="NAME", help=help)
    parser.add_argument("--config", metavar="FILE", help="settings in TOML or YAML")


def _add_option(parser: argparse.ArgumentParser, spec: dataclasses.Field[Any], kind: Any) -> None:
    flag, known = f"--{spec.name.replace('_', '-')}", spec.metadata["help"]
    if typing.get_origin(kind) in (dict, Mapping):
        metavar = _METAVARS.get(spec.name, "NAME=VALUE")
        parser.add_argument(flag, action="append", metavar=metavar, help=known)
        return
    if typing.get_origin(kind) is tuple:
        parser.add_argument(flag, action="append", metavar=_METAVARS.get(spec.name, "TEXT"), help=known)
        return
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=known)
        return
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    default = "" if spec.default in (None, "") else f" (default: {spec.default})"
    metavar = {int: "N", float: "X", str: "TEXT"}[kind]
    parser.add_argument(flag, type=kind, default=None, metavar=metavar, help=(known + default).replace("%", "%%"))


def _tables(settings: type[TrainSettings]) -> list[str]:
    kinds = typing.get_type_hints(settings)
    return [s.name for s in dataclasses.fields(settings) if typing.get_origin(kinds[s.name]) in (dict, Mapping)]


def _renamed(settings: type[TrainSettings], known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What the command line says, under the name that the file has for it, so that it wins."""
    in_file = {ours: name for name, ours in settings.aliases().items() if name in known}
    return {in_file.get(name, name): value for name, value in given.items()}


def _pair(table: str, text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        example = "timeout=train" if table == "failures" else "name=value"
        raise ConfigError(f"--{table} {text}: no value", hint=f"write it like {example}")
    return name, value if table == "failures" else _value(value)


def _value(text: str) -> Any:
    """What a text says: JSON where it is some (`3`, `true`, `[1, 2]`), and itself otherwise."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _toml() -> tuple[str, Any, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        raise ConfigError("reading TOML needs Python 3.11", hint="write the settings as YAML") from None
    return "TOML", tomllib.loads, tomllib.TOMLDecodeError


def _yaml() -> tuple[str, Any, Any]:
    try:
        import yaml
    except ImportError:
        raise ConfigError("reading YAML needs PyYAML", hint="pip install pyyaml, or write TOML") from None
    return "YAML", yaml.safe_load, yaml.YAMLError
