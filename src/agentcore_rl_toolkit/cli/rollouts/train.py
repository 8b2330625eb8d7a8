"""Train an agent's policy with GRPO.

AGENT is an ARN, a Python file or a folder, as for `rollout`. MODEL is a folder, a hub id, or `tiny`, the built-in
policy. Settings may also come from a TOML or YAML file (`--config`), named like the options; the command line wins.
The options depend on the backend.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...backends.base import Backend, extra_of, find, names
from ...backends.settings import TrainSettings
from ...common.checked_settings import CheckedSettings
from ...common.env_file import read_env
from ...engine.checkpoints import resolve_model
from ...errors import ConfigError
from ...rows import rows_of
from ..flags import read_concurrency, read_pairs, read_variables, say, split_pair
from ..settings_file import read_settings_file
from ..terminal.interrupt import CODE, terminate_as_interrupt
from ..terminal.parser import METAVARS, Parser

HELP = "train an agent's policy"
PARSER_OPTIONS = {"add_help": False}
"""The options depend on the backend: `run` parses them."""
EXAMPLES = (
    "agentcore-rl train my_agent --data rows.jsonl --eval-data held_out.jsonl --model tiny --steps 30",
    "agentcore-rl train my_agent --config train.toml --dry-run",
    "agentcore-rl train my_agent --model Qwen/Qwen3-0.6B --lora-rank 16 --output runs/lora --resume",
    "agentcore-rl train my_agent --backend verl --help",
)
DEFAULT_BACKEND = "trl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_choice(parser, argparse.SUPPRESS)
    parser.set_defaults(rest=[])


def run(args: argparse.Namespace) -> int:
    """Exits with 1 if training fails, 130 after an interrupt, 143 after SIGTERM."""
    args.extra = extra_of(_backend_name(args.backend, args.config))
    backend, settings, dry_run = read_train_arguments(args.backend, args.config, args.rest)
    terminated: list[int] = []
    try:
        if dry_run:
            print(backend.plan(settings).text())
            return 0 if _try_agent(settings) else 1
        with terminate_as_interrupt() as terminated:
            summary = backend.train(settings)
    except KeyboardInterrupt:
        say("interrupted before training began; no checkpoint is written")
        return 128 + signal.SIGTERM if terminated else CODE
    except ImportError as error:
        if "\nhint: " not in str(error):
            raise
        raise ConfigError(str(error)) from error
    if os.environ.get("RANK", "0") == "0":  # one of several processes prints
        print(json.dumps({name: summary[name] for name in summary if name != "examples"}))
    interrupted = (128 + signal.SIGTERM if terminated else CODE) if summary.get("interrupted") else 0
    return int(summary.get("exit_code") or interrupted)


def _try_agent(settings: TrainSettings) -> bool:
    """Run one row through an agent on this machine, with a script in place of the model; whether that works."""
    if not settings.agent or settings.agent.startswith("arn:") or settings.data == "-":
        return True
    from ...deploy.doctor.doctor import DoctorOptions, run_checks

    parts = ("agent", "model") if os.path.isdir(resolve_model(settings.model)) else ("agent",)
    names = {field.name for field in dataclasses.fields(DoctorOptions)} & {f.name for f in dataclasses.fields(settings)}
    known = {name: getattr(settings, name) for name in names if getattr(settings, name) is not None}
    checks = list(run_checks(DoctorOptions(only=parts, **known), {}))
    for check in checks:
        say(check.line)
    return not any(check.state == "failed" for check in checks)


def read_train_arguments(
    name: str | None, config: str | None, rest: Sequence[str]
) -> tuple[Backend, TrainSettings, bool]:
    """The backend, the settings of a command line, and whether this is a dry run."""
    in_file = read_settings_file(Path(config)) if config else {}
    backend = find(_backend_name(name, config))
    in_file.pop("backend", None)
    given = {name: value for name, value in vars(parser_for(backend).parse_args(rest)).items() if value is not None}
    given = {name: value for name, value in given.items() if name not in ("backend", "config")}
    dry_run = bool(given.pop("dry_run", False))
    for table, kind in field_types(backend.settings).items():
        if typing.get_origin(kind) in (dict, Mapping) and table in given:
            given[table] = dict(in_file.get(table) or {}) | _read_table(table, given[table])
    file_names = {ours: name for name, ours in backend.settings.aliases().items() if name in in_file}
    renamed = {file_names.get(name, name): value for name, value in given.items()}  # so that it replaces the file's
    settings = backend.settings.from_mapping(in_file | renamed)
    settings = _with_environment(settings)
    if not settings.agent and getattr(settings, "container_uri", None) is None:
        hint = "agentcore-rl train AGENT --data rows.jsonl, or set AGENTCORE_AGENT_ARN"
        raise ConfigError("agent is missing", hint=hint)
    if not settings.data:
        settings = dataclasses.replace(settings, data=rows_of(settings.agent))
    return backend, settings, dry_run


def _backend_name(name: str | None, config: str | None) -> str:
    in_file = read_settings_file(Path(config)) if config else {}
    return str(name or in_file.get("backend") or DEFAULT_BACKEND)


def _with_environment(settings: TrainSettings) -> TrainSettings:
    """The runtime and the bucket of AGENTCORE_AGENT_ARN and AGENTCORE_S3_BUCKET, in the environment or .env, where no
    agent is named."""
    known = {**read_env(Path()), **os.environ}
    arn, bucket = known.get("AGENTCORE_AGENT_ARN"), known.get("AGENTCORE_S3_BUCKET")
    if not settings.agent and arn:
        settings = dataclasses.replace(settings, agent=arn)
    if settings.agent.startswith("arn:") and settings.store is None and bucket:
        settings = dataclasses.replace(settings, store=bucket)
    return settings


def parser_for(backend: Backend) -> argparse.ArgumentParser:
    """The options of `train` with one backend: the fields of its settings."""
    shown = "" if backend.name == DEFAULT_BACKEND else f" --backend {backend.name}"
    parser = Parser(prog=f"agentcore-rl train{shown}", description=__doc__, examples=EXAMPLES)
    parser.add_argument("agent", nargs="?", help="an ARN, or the path of an agent (rl_app.py)")
    _add_choice(parser, f"train with one of {', '.join(names())} (default: {DEFAULT_BACKEND})")
    parser.add_argument("--dry-run", action="store_true", help="check everything, show the plan, and start nothing")
    kinds = field_types(backend.settings)
    for spec in dataclasses.fields(backend.settings):
        if spec.name != "agent":
            add_option(parser, spec, kinds[spec.name])
    return parser


def _add_choice(parser: argparse.ArgumentParser, help: str) -> None:
    """The two arguments that decide which options the command has."""
    parser.add_argument("--backend", metavar="NAME", help=help)
    parser.add_argument("--config", metavar="FILE", help="read settings from this TOML or YAML file")


def add_option(parser: argparse.ArgumentParser, spec: dataclasses.Field[Any], kind: Any) -> None:
    flag, help = f"--{spec.name.replace('_', '-')}", spec.metadata["help"]
    origin = typing.get_origin(kind)
    if origin in (dict, Mapping, tuple):
        metavar = METAVARS.get(flag, "TEXT" if origin is tuple else "NAME=VALUE")
        parser.add_argument(flag, action="append", metavar=metavar, help=help)
        return
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help)
        return
    if isinstance(kind, types.UnionType):
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        kind = read_concurrency if parts == [int, str] else parts[0]
    default = "" if spec.default in (None, "") else f" (default: {spec.default})"
    shown = "NUMBER" if kind is read_concurrency else None  # as `rollout` and `eval` have it
    parser.add_argument(flag, type=kind, metavar=shown, default=None, help=(help + default).replace("%", "%%"))


def field_types(settings: type[CheckedSettings]) -> dict[str, Any]:
    kinds = typing.get_type_hints(settings)
    return {spec.name: kinds[spec.name] for spec in dataclasses.fields(settings)}


def _read_table(table: str, given: list[str]) -> dict[str, Any]:
    """The values of a repeated NAME=VALUE option."""
    if table == "env":
        return dict(read_variables(given))
    if table in ("failures", "guard"):
        example = {"failures": "timeout=train", "guard": "constant_reward=stop"}[table]
        return dict(split_pair(f"--{table}", text, example) for text in given)
    return read_pairs(f"--{table.replace('_', '-')}", given)
