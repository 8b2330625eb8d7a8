"""The protocol of a backend, its discovery, the checks before a run, and the plan. Nothing here contacts a service.

Backends are entry points of the group `agentcore_rl.backends`, ours among them, so other packages can add theirs:

    [project.entry-points."agentcore_rl.backends"]
    mine = "my_package.backend:BACKEND"
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..agent.safe_values.redaction import HIDDEN
from ..common.http_guard import names_this_machine
from ..common.trackers import OPENERS
from ..engine.checkpoints import context_warning, resolve_model
from ..errors import ConfigError, suggest_path
from ..rows import read_rows
from ..store.base import check_folder, check_store
from .settings import LoopSettings, RolloutSettings, TrainSettings

GROUP = "agentcore_rl.backends"
_NOT_AWS = ("arn:aws:bedrock-agentcore:local:", "arn:aws:bedrock-agentcore:ray:")
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)


_DESCRIBED = (
    *("agent", "model", "data", "eval_data", "steps", "n", "rows_per_step", "seed", "learning_rate", "temperature"),
    *("timeout", "lora_rank", "async_steps", "mix", "skip_epochs"),
)


def describe_settings(settings: TrainSettings) -> dict[str, Any]:
    """What identifies a run, for its `run.json`; no secrets."""
    known = {name: getattr(settings, name) for name in _DESCRIBED if hasattr(settings, name)}
    return {"kind": "train", "started": time.time(), **known, "model_folder": resolve_model(settings.model)}


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What a run would do. `--dry-run` prints it, and `launch.py` carries it out."""

    backend: str
    settings: Mapping[str, Any]
    command: tuple[str, ...] = ()
    """The program to start; empty if the training loop runs in this process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for the program, added to those of this process."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files to write before the start: path and text."""
    session_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for sessions, which no text of the plan shows."""
    document: Mapping[str, Any] | None = None
    """What a service is sent, if another program runs the training."""
    notes: tuple[str, ...] = ()
    """What was checked, and what could not be."""

    def text(self) -> str:
        """The plan as a shell script; as a TOML file or a JSON document if the backend doesn't start a program."""
        lines = [f"# {note}" for note in self.notes]
        for path, content in self.files.items():
            lines += [f"# {path}", *(f"#   {line}" for line in content.splitlines())]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        if self.document is not None:
            lines.append(json.dumps(self.document, indent=2, ensure_ascii=False))
        elif self.command:
            lines.append(" \\\n    ".join(shlex.quote(part) for part in self.command))
        else:
            lines += ["# in this process, with", *map(_toml_line, self.settings, self.settings.values())]
        return "\n".join(line for line in lines if line)


@runtime_checkable
class Backend(Protocol):
    """One trainer."""

    name: str
    extra: str
    """The extra to install: `pip install 'agentcore-rl-toolkit[extra]'`."""
    settings: type[TrainSettings]

    def plan(self, settings: Any) -> TrainingPlan:
        """Check everything that needs no GPU, and describe the run. Starts and writes nothing."""

    def train(self, settings: Any) -> dict[str, Any]:
        """Train and return the run's summary. `interrupted` is true if a signal ended the run early."""


def names() -> list[str]:
    return sorted({entry.name for entry in metadata.entry_points(group=GROUP)})


def find(name: str) -> Backend:
    for entry in metadata.entry_points(group=GROUP):
        if entry.name == name:
            found = entry.load()
            if not isinstance(found, Backend):
                raise ConfigError(f"the entry point {entry.value} of {GROUP} is not a backend")
            return found
    close = difflib.get_close_matches(name, names(), 1)
    hint = f"did you mean {close[0]}?" if close else f"installed are: {', '.join(names())}"
    raise ConfigError(f"no backend named {name!r} is installed", hint=hint)


def extra_of(name: str) -> str:
    """The extra to install for a backend of ours, which is known before it is imported: its folder's name."""
    ours = f"{__package__}."
    found = [entry.module for entry in metadata.entry_points(group=GROUP) if entry.name == name]
    return next((module.removeprefix(ours).partition(".")[0] for module in found if module.startswith(ours)), "")


def is_installed(module: str) -> bool:
    """Whether a module can be imported; it is not imported."""
    try:
        return importlib.util.find_spec(module or "-") is not None
    except ImportError:
        return False


def require(module: str, extra: str, user: str) -> Any:
    """Import a module that `user` needs; if it is missing, name the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        hint = f"pip install 'agentcore-rl-toolkit[{extra}]'"
        missing = f"{user} needs {error.name or module}, which is not installed"
        raise ImportError(f"{missing}\nhint: {hint}", name=error.name) from error


def lazy_attributes(package: str, extra: str, **modules: Sequence[str]) -> Callable[[str], Any]:
    """Make a package's `__getattr__`, which imports a name from the module that has it on first use."""
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(require(f"{package}.{homes[name]}", extra, f"{package}.{name}"), name)

    return get


# --- checks before a run ---------------------------------------------------------------------------------------------


def check_settings(settings: TrainSettings) -> tuple[str, ...]:
    """Refuse settings that can't work; return notes about the agent and the data."""
    if isinstance(settings, RolloutSettings) and settings.reward is not None:
        from ..rollout.signal.rescore import load_reward

        load_reward(settings.reward)
    mixed = tuple(settings.mix) if isinstance(settings, LoopSettings) else ()
    notes = [*_check_agents(settings), *_check_rows("data", settings.data, 1 if mixed else settings.rows_per_step)]
    for path in mixed:
        notes += _check_rows("mix", path, 1)
    if settings.eval_data:
        notes += _check_rows("eval_data", settings.eval_data, 1)
        for path in (settings.data, *mixed):
            notes += check_overlap(path, settings.eval_data)
    notes += _check_model(settings)
    if settings.store is not None:
        check_store(settings.store)
    notes += _check_output(settings)
    if isinstance(settings, RolloutSettings):
        settings.rollout_options(None)  # refuses a failure table that can't be read
        from ..studio.guards import Guards  # numpy, which the base package hasn't

        Guards(settings.guard, settings.guards_from)  # refuses a guard that does not exist
    if isinstance(settings, LoopSettings):
        _check_loop(settings)
    return tuple(notes)


def runs_on_aws(agent: str) -> bool:
    """Whether the agent's sessions run on AWS, rather than on this machine or on the user's own cluster."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE")
    return agent.startswith("arn:") and not agent.startswith(_NOT_AWS) and not endpoint


def _check_agents(settings: TrainSettings) -> list[str]:
    """A note about every place where sessions run."""
    runtimes = list(settings.runtime) if isinstance(settings, RolloutSettings) else []
    if runtimes or settings.agent.startswith("arn:"):
        settings.session_targets()  # refuses what can't be several, and what only a sandbox on this machine can give
    places = runtimes if runtimes and not settings.agent.startswith("arn:") else [settings.agent, *runtimes]
    return [_check_agent(settings, place) for place in places]


def _check_agent(settings: TrainSettings, agent: str) -> str:
    if not agent.startswith("arn:"):
        if not Path(agent).exists():
            hint = suggest_path(agent) or "give an ARN, or the path of an agent (rl_app.py)"
            raise ConfigError(f"no agent found at {agent!r}", hint=hint)
        return f"agent: {agent}, on this machine"
    if not runs_on_aws(agent):
        return f"agent: {agent}, not on AWS"
    if settings.store is None or settings.store.startswith((".", "/")):
        hint = "give store (s3_bucket): a bucket that the agent's role may write to"
        raise ConfigError(f"sessions on AWS can't store results in {settings.store or 'a folder'}", hint=hint)
    if isinstance(settings, RolloutSettings):
        host = settings.session_host
        if host is None or names_this_machine(host):
            hint = "give gateway_public_url, and gateway_host=0.0.0.0 with a gateway_port that they can reach"
            raise ConfigError("sessions on AWS can't reach a gateway on this machine's own address", hint=hint)
    return f"agent: {agent}, on AWS"


def _check_model(settings: TrainSettings) -> list[str]:
    """Refuse a path without a model; a note about one that is not on this machine, or has a smaller context."""
    model = settings.model
    if Path(resolve_model(model)).exists():
        limit = settings.context_limit if isinstance(settings, RolloutSettings) else None
        return [warning] if (warning := context_warning(limit, model)) else []
    if not getattr(settings, "trains_here", True):  # the service's own name
        return []
    if not _HUB_ID.fullmatch(model):
        raise ConfigError(f"no model found at {model}", hint="give a folder, a hub id, or `tiny`")
    return [f"model: {model} is not a folder here, so the run loads it from the Hugging Face hub; it was not checked"]


def _check_output(settings: TrainSettings) -> list[str]:
    """Refuse a folder that can't be written; a note about a run that is there."""
    check_folder(settings.folder, f"the run can't be written to {settings.output}", "choose another output")
    has_run = any(settings.folder.glob("checkpoints/checkpoint-*"))
    if isinstance(settings, LoopSettings) and has_run and not settings.resume:
        return [f"warning: {settings.output} has a run already: resume it (--resume), or choose another output"]
    return []


def _check_loop(settings: LoopSettings) -> None:
    if settings.chat_template is not None and not Path(settings.chat_template).is_file():
        raise ConfigError(f"no chat template found at {settings.chat_template}", hint="give the path of a Jinja file")
    if settings.lora_rank and settings.trains_here and not is_installed("peft"):
        raise ConfigError(f"lora_rank={settings.lora_rank} needs peft, which is not installed", hint="pip install peft")
    for target in settings.report_to.split(",") if settings.report_to != "none" else ():
        if not is_installed(target.strip()):
            hint = f"pip install {target}" if target in OPENERS else f"choose {', '.join(OPENERS)}"
            raise ConfigError(f"report_to={target} needs a package that is not installed", hint=hint)


def check_overlap(data: str, eval_data: str) -> list[str]:
    """A note if rows of one file are in the other."""
    if "-" in (data, eval_data):
        return []
    trained, held_out = (
        [json.dumps(row, sort_keys=True, default=repr) for row in read_rows(file)[0]] for file in (data, eval_data)
    )
    shared = sum(map(set(trained).__contains__, held_out))
    return [f"warning: {shared} of {len(held_out)} held-out rows are training rows too"] if shared else []


def _check_rows(name: str, path: str, least: int) -> list[str]:
    if path == "-":
        return [f"{name}: standard input, not read yet"]
    rows, problems = read_rows(path)
    if len(rows) < least:
        raise ConfigError(f"{path} has {len(rows)} rows, and a step takes {least}", hint="lower rows_per_step")
    return [f"{name}: {len(rows)} rows in {path}", *(f"{name}: {problem}; left out" for problem in problems)]


def _toml_line(name: str, value: Any) -> str:
    """A setting as a line of TOML; an empty text for one that is not set."""
    if isinstance(value, Mapping):
        value = dict.fromkeys(value, HIDDEN) if name == "env" else value
        pairs = [f"{json.dumps(key)} = {json.dumps(one)}" for key, one in value.items() if one is not None]
        return f"{name} = {{ {', '.join(pairs)} }}" if pairs else ""
    return "" if value in (None, ()) else f"{name} = {json.dumps(value)}"
