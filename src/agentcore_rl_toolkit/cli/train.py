"""`agentcore-rl train AGENT --data rows.jsonl --model MODEL`: train an agent's policy with GRPO.

AGENT is an ARN or a Python file, as for `rollout`. MODEL is a folder, a hub id, or `tiny`, the built-in policy.
Settings may also come from a TOML file (`--config`); the command line wins. Needs the extra `trl`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..backends.settings import TrainSettings
from ..errors import ConfigError


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the verb; its options are the fields of `TrainSettings`."""
    parser = subparsers.add_parser("train", help="train an agent's policy", description=__doc__)
    parser.add_argument("agent", nargs="?", help="an ARN, or the path of an agent (rl_app.py)")
    parser.add_argument("--config", metavar="FILE", help="settings in TOML")
    kinds = typing.get_type_hints(TrainSettings)
    for spec in dataclasses.fields(TrainSettings):
        if spec.name != "agent":
            _add_option(parser, spec, kinds[spec.name])
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train; exit with 1 if it fails, 130 if it was interrupted."""
    settings = read_settings(args)
    try:
        from ..backends.trl import train
    except ImportError as error:
        hint = "pip install 'agentcore-rl-toolkit[trl]'"
        raise ConfigError(f"training needs TRL, and {error.name} is not installed", hint=hint) from None
    summary = train(settings)
    print(json.dumps({name: summary[name] for name in summary if name != "examples"}))
    return 130 if summary["interrupted"] else 0


def read_settings(args: argparse.Namespace) -> TrainSettings:
    """The settings of a command line."""
    names = {spec.name for spec in dataclasses.fields(TrainSettings)}
    given = {name: value for name, value in vars(args).items() if value is not None and name in names}
    known = _read_toml(Path(args.config)) if args.config else {}
    if "failures" in given:
        given["failures"] = known.get("failures", {}) | dict(_pair(text) for text in given["failures"])
    settings = TrainSettings.from_mapping(known | given)
    for name in ("agent", "data"):
        if not getattr(settings, name):
            raise ConfigError(f"{name} is missing", hint="agentcore-rl train AGENT --data rows.jsonl")
    return settings


def _add_option(parser: argparse.ArgumentParser, spec: dataclasses.Field[Any], kind: Any) -> None:
    flag, known = f"--{spec.name.replace('_', '-')}", spec.metadata.get("help") or spec.name.replace("_", " ")
    if typing.get_origin(kind) in (dict, Mapping):
        parser.add_argument(flag, action="append", metavar="STATUS=ACTION", help=known)
        return
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=known)
        return
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    default = "" if spec.default in (None, "") else f" (default: {spec.default})"
    metavar = {int: "N", float: "X", str: "TEXT"}[kind]
    parser.add_argument(flag, type=kind, default=None, metavar=metavar, help=(known + default).replace("%", "%%"))


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"--failures {text}: no action", hint="write it like timeout=train")
    return name, value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        raise ConfigError("reading TOML needs Python 3.11", hint="give the settings as options") from None
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from None
