"""What a run is told, on the command line, in a file, or from Python. It contacts nothing.

    TrainSettings       what every backend takes
      RolloutSettings   … those that run rollouts with this package
        SavingSettings  … those that save checkpoints and resume from them
          LoopSettings  … those whose training loop runs in this process

A backend has one of them, or one of its own with further fields.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import time
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..errors import ConfigError
from ..runtime.local_agent import local_agent

if TYPE_CHECKING:
    from ..client import RolloutClient
    from ..rollout import RolloutOptions
    from ..runtime.local import AgentSource

Settings = TypeVar("Settings", bound="TrainSettings")

_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def option(default: Any, help: str, *, seed: str | None = None) -> Any:
    """A setting; `seed` is the name it has in trainers' own files, which is accepted too."""
    known = {"help": help, "seed": seed}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=known)
    return field(default=default, metadata=known)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """What every backend takes."""

    agent: str = option("", "an ARN, or the path of an agent (rl_app.py)", seed="agent_runtime_arn")
    data: str = option("", "JSONL, one payload a line", seed="data_path")
    model: str = option("tiny", "a folder, a hub id, or `tiny`, the built-in policy", seed="model_dir")
    output: str = option("runs/train", "where checkpoints, rollouts and figures go")
    store: str | None = option(
        None, "where results land: a bucket, s3://bucket/prefix or a folder (default: in output)", seed="s3_bucket"
    )
    exp_id: str | None = option(None, "the experiment that results land under (default: output's name and the time)")
    eval_data: str | None = option(None, "JSONL of held-out rows")
    steps: int = option(50, "updates of the weights", seed="num_rollout")
    rows_per_step: int = option(8, "data rows in a step")
    n: int = option(8, "rollouts of each row: the size of a group")
    seed: int = option(0, "of everything that is drawn by lot")
    sqs_url: str | None = option(None, "SQS queue (name or URL) on which stored results are announced")
    timeout: float = option(300.0, "seconds a rollout may take", seed="session_timeout")
    tps_limit: float = option(25.0, "most calls a second to the runtime; AWS's quota is 25")
    env: Mapping[str, str] = option({}, "a variable that sessions on this machine get; overrides .env")
    allow: tuple[str, ...] = option((), "an address that sessions on this machine may reach; may be repeated")
    memory_mb: int | None = option(None, "memory of a session on this machine (default: 2048)")
    options: Mapping[str, Any] = option({}, "the trainer's own settings, passed on as they are")

    at_least_one: ClassVar[tuple[str, ...]] = ("steps", "rows_per_step")

    def __post_init__(self) -> None:
        kinds = typing.get_type_hints(type(self))
        for spec in dataclasses.fields(self):
            _check_kind(spec.name, getattr(self, spec.name), kinds[spec.name])
        for name in self.at_least_one:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.n < 2:
            raise ConfigError(f"n must be at least 2, not {self.n}", hint="GRPO compares the rollouts of a row")

    @classmethod
    def aliases(cls) -> dict[str, str]:
        """Further names of settings, as trainers' own files have them, each with ours."""
        return {spec.metadata["seed"]: spec.name for spec in dataclasses.fields(cls) if spec.metadata["seed"]}

    @classmethod
    def from_mapping(cls: type[Settings], values: Mapping[str, Any]) -> Settings:
        """Settings by their names, or by those that trainers' own files have for them; an unknown one is refused."""
        known = [spec.name for spec in dataclasses.fields(cls)]
        kinds, seeds = typing.get_type_hints(cls), cls.aliases()
        given: dict[str, Any] = {}
        for name, value in values.items():
            ours = seeds.get(name, name)
            if ours in given:
                raise ConfigError(f"{name} and {ours} are the same setting", hint="give one of them")
            if ours not in known:
                close = difflib.get_close_matches(name, [*known, *seeds], 1)
                hint = f"did you mean {close[0]!r}?" if close else f"there is: {', '.join(known)}"
                raise ConfigError(f"unknown setting {name!r}", hint=hint)
            value = tuple(value) if isinstance(value, list) and typing.get_origin(kinds[ours]) is tuple else value
            given[ours] = _number(value) if kinds[ours] is float else value
        return cls(**given)

    @property
    def folder(self) -> Path:
        return Path(self.output)

    def local_agent(self) -> str | AgentSource:
        """The agent with what its sessions on this machine get, those of `.env` included; an ARN as it is."""
        return local_agent(self.agent, env=self.env, allow=self.allow, memory_mb=self.memory_mb)

    def client(self) -> RolloutClient:
        """The client of this run."""
        from ..client import RolloutClient

        place = self.store or str((self.folder / "results").resolve())
        name = self.exp_id or f"{self.folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        announced: dict[str, Any] = {"sqs_url": self.sqs_url} if self.sqs_url else {}
        return RolloutClient(self.local_agent(), place, name, tps_limit=self.tps_limit, **announced)


@dataclass(frozen=True, kw_only=True)
class RolloutSettings(TrainSettings):
    """What backends take that run rollouts with this package."""

    temperature: float = option(1.0, "of the policy")
    max_tokens: int | None = option(None, "most tokens of one reply")
    context_limit: int | None = option(None, "most tokens of prompt and reply of one model call")
    side_calls: Mapping[str, Any] = option(
        {}, "calls that are not trained on, by model, system, user or tools, e.g. model=*haiku*"
    )
    gateway_host: str = option("127.0.0.1", "the address the gateway listens on")
    gateway_port: int = option(0, "its port; 0 takes a free one")
    gateway_url: str | None = option(None, "the URL that sessions reach it at, if another (needed for sessions on AWS)")
    concurrency: int = option(32, "sessions at a time")
    oversample: int = option(0, "start so many more rollouts of each row, and stop the slowest")
    dynamic_sampling: bool = option(False, "make up for groups without reward variance by further rows")
    min_trained_ratio: float = option(0.0, "mask rollouts of which less was recorded exactly")
    max_rollout_tokens: int | None = option(None, "mask rollouts that are longer")
    max_batch_tokens: int | None = option(None, "drop a step's groups beyond so many tokens")
    max_staleness: int | None = option(None, "run rollouts again whose tokens are older than so many updates")
    max_failures: int = option(16, "so many failed rollouts in a row end the run; outages don't count")
    outage_seconds: float = option(300.0, "how long a runtime or an engine that is down is waited for")
    failures: Mapping[str, str] = option({}, "changes to the failure table, e.g. timeout=train")
    failed_reward: float = option(0.0, "the reward of failed rollouts that the table trains on")
    eval_every: int = option(0, "evaluate every so many steps; before and after in any case")
    eval_samples: int = option(1, "rollouts of each held-out row")

    at_least_one: ClassVar[tuple[str, ...]] = (*TrainSettings.at_least_one, "concurrency", "eval_samples")

    @property
    def sampling(self) -> dict[str, Any]:
        """What every model call samples with."""
        from ..rollout import UNALTERED

        asked = {**UNALTERED, "temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def gateway(self) -> dict[str, Any]:
        """Where the gateway is, as `Gateway` takes it."""
        return {"host": self.gateway_host, "port": self.gateway_port, "public_url": self.gateway_url}

    def rollout_options(self, model: str | None, version: Callable[[], int] = lambda: 0) -> RolloutOptions:
        """How the rollouts of this run are run; `version` is the number of the current weights."""
        from ..rollout import Judge, RolloutOptions, failure_table

        judge = Judge(
            table=failure_table(self.failures),
            failed_reward=self.failed_reward,
            min_trained_ratio=self.min_trained_ratio,
            max_rollout_tokens=self.max_rollout_tokens,
            max_staleness=self.max_staleness,
            version=version,
            dynamic_sampling=self.dynamic_sampling,
        )
        return RolloutOptions(
            n=self.n,
            max_concurrent_sessions=self.concurrency,
            timeout=self.timeout,
            oversample=self.oversample,
            max_failures=self.max_failures,
            outage_seconds=self.outage_seconds,
            max_batch_tokens=self.max_batch_tokens,
            enforced=self.sampling,
            context_limit=self.context_limit,
            model=model,
            side_calls=self.side_calls or None,
            judge=judge,
            keep_dropped=True,
        )


@dataclass(frozen=True, kw_only=True)
class SavingSettings(RolloutSettings):
    """What backends take that save checkpoints in `output` and resume from them."""

    save_every: int = option(20, "a checkpoint every so many steps, and one at the end")
    keep: int = option(2, "how many checkpoints are kept")
    resume: bool = option(False, "go on from the latest checkpoint in output")

    at_least_one: ClassVar[tuple[str, ...]] = (*RolloutSettings.at_least_one, "save_every", "keep")


@dataclass(frozen=True, kw_only=True)
class LoopSettings(SavingSettings):
    """What backends take whose training loop runs in this process."""

    learning_rate: float = option(1e-5, "of the optimizer")
    lora_rank: int = option(0, "train an adapter of this rank; 0 trains all weights")
    chat_template: str | None = option(None, "a Jinja file to use in place of the model's own template")
    report_to: str = option("none", "wandb, tensorboard or trackio, if installed; several with commas")


def _number(value: Any) -> Any:
    """A number that YAML 1.1 takes for a text because it has no dot: `1e-6`."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def _check_kind(name: str, value: Any, kind: Any) -> None:
    """A file may hold anything: refuse what has another kind than the setting."""
    allowed = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    plain = tuple(typing.get_origin(one) or one for one in allowed)
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return
    if not isinstance(value, plain) or (isinstance(value, bool) and bool not in plain):
        named = " or ".join("nothing" if one is type(None) else one.__name__ for one in plain)
        raise ConfigError(f"{name} must be {named}, not {value!r}")


def refuse_env(settings: TrainSettings) -> None:
    """For backends that start other processes: a variable would be written where those read their settings."""
    if settings.env:
        hint = "write it to .env in the agent's folder, which the workers read"
        raise ConfigError(f"env {', '.join(settings.env)}: this backend can't hand secrets to its workers", hint=hint)
