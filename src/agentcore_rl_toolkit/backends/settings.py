"""The settings that backends share, given on the command line, in a file, or from Python. Contacts nothing.

    TrainSettings       every backend
      RolloutSettings   backends that run rollouts with this package
        SavingSettings  backends that save checkpoints and resume from them
          LoopSettings  backends whose training loop runs in this process

A backend uses one of these classes, or a subclass with more fields. So it refuses, by name, any setting that it would
ignore.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import urlsplit

from ..agent.safe_values.redaction import HIDDEN
from ..client.runtimes.targets import resolve_targets
from ..client.session_limit import check_concurrency
from ..common.checked_settings import CheckedSettings, option
from ..errors import ConfigError
from ..runtime.local.agent_source import resolve_agent

if TYPE_CHECKING:
    from ..client import RolloutClient
    from ..client.session_limit import Concurrency
    from ..engine import Engine
    from ..gateway.gateway import Gateway
    from ..gateway.remote.gateway_client import GatewayClient
    from ..rollout import RolloutOptions
    from ..rollout.signal.credit import TurnCredit
    from ..runtime.local import AgentSource

_MOST_WORKERS = 64

ENV_FILE = "session_env.json"
"""The file in a run's folder that has the values of `env` while a trainer of its own runs."""

MOST_RATIO = 2.0
"""With `async_steps`, where the ratio of the policy to the sampler is truncated."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainSettings(CheckedSettings):
    """The settings of every backend."""

    agent: str = option("", "an ARN, or the path of an agent (rl_app.py)", alias="agent_runtime_arn")
    data: str = option(
        "",
        "one payload per row: JSONL, CSV, Parquet, a JSON array, or a Hugging Face data set, on disk or NAME:SPLIT",
        alias="data_path",
    )
    model: str = option("tiny", "a folder, a hub id, or `tiny`, the built-in policy", alias="model_dir")
    output: str = option("runs/train", "the folder for checkpoints, rollouts and metrics")
    store: str | None = option(
        None,
        "the store of results: a bucket, s3://bucket/prefix or a folder (default: in output)",
        alias="s3_bucket",
    )
    exp_id: str | None = option(None, "the experiment to store results under (default: output's name and the time)")
    eval_data: str | None = option(None, "held-out rows, in any format of data")
    steps: int = option(50, "weight updates", alias="num_rollout")
    rows_per_step: int = option(8, "data rows per step")
    n: int = option(8, "rollouts per row: the size of a group")
    seed: int = option(0, "seeds sampling, shuffling and initialization")
    sqs_url: str | None = option(None, "the SQS queue (name or URL) that announces stored results")
    timeout: float = option(300.0, "the most seconds a rollout may take", alias="session_timeout")
    tps_limit: float = option(25.0, "the most calls per second to each runtime, invokes and stops together")
    env: Mapping[str, str] = option({}, "an environment variable for sessions on this machine; overrides .env")
    allow: tuple[str, ...] = option((), "an address that sessions on this machine may reach; may be repeated")
    memory_mb: int | None = option(None, "memory of a session on this machine (default: 2048)")
    options: Mapping[str, Any] = option({}, "the trainer's own settings, passed on unchanged")

    at_least_one: ClassVar[tuple[str, ...]] = ("steps", "rows_per_step", "memory_mb")
    more_than_zero: ClassVar[tuple[str, ...]] = ("timeout", "tps_limit")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 2:
            raise ConfigError(f"n must be at least 2, not {self.n}", hint="GRPO compares the rollouts of a row")

    @property
    def folder(self) -> Path:
        return Path(self.output)

    @property
    def env_file(self) -> Path:
        """Where other processes of this run read the values of `env`, which no command line or dashboard shows."""
        return self.folder.resolve() / ENV_FILE

    @property
    def hidden_env(self) -> dict[str, str]:
        """The variables of `env` without their values, for another process of this run."""
        return dict.fromkeys(self.env, HIDDEN)

    def session_env(self) -> dict[str, str]:
        """`env`, with the values that another process of this run was not shown."""
        return read_env_file(self.env_file) if HIDDEN in self.env.values() else dict(self.env)

    def local_agent(self) -> str | AgentSource:
        """The agent with the environment of its sessions on this machine, `.env` included; an ARN unchanged."""
        return resolve_agent(self.agent, env=self.session_env(), allow=self.allow, memory_mb=self.memory_mb)

    def session_targets(self) -> str | AgentSource | list[str]:
        """Where sessions run."""
        return self.local_agent()

    def client(self) -> RolloutClient:
        """The client of this run."""
        from ..client import RolloutClient

        store = self.store or str((self.folder / "results").resolve())
        queue: dict[str, Any] = {"sqs_url": self.sqs_url} if self.sqs_url else {}
        return RolloutClient(
            self.session_targets(),
            store,
            self.experiment(),
            tps_limit=self.tps_limit,
            agent_protocol=getattr(self, "agent_protocol", "agentcore"),
            **queue,
        )

    def experiment(self) -> str:
        """`exp_id`, or a new name from the output folder and the time."""
        return self.exp_id or f"{self.folder.resolve().name}-{time.strftime('%Y%m%d-%H%M%S')}"


@dataclass(frozen=True, kw_only=True, repr=False)
class RolloutSettings(TrainSettings):
    """The settings of backends that run rollouts with this package."""

    agent_protocol: str = option(
        "agentcore", "how the agent is invoked: agentcore, or sagemaker for one written for SageMaker multi-turn RL"
    )
    runtime: tuple[str, ...] = option(
        (), "run sessions on this deployed copy of the agent (an ARN), which shares the load; may be repeated"
    )
    temperature: float = option(1.0, "the sampling temperature of the policy")
    max_tokens: int | None = option(None, "the most tokens in one completion")
    context_limit: int | None = option(None, "the most tokens in one model call, prompt and completion together")
    side_calls: Mapping[str, Any] = option(
        {}, "model calls to leave out of training, by model, system, user or tools, e.g. model=*haiku*"
    )
    gateway: Mapping[str, Any] = option(
        {}, "run the gateway in separate processes: workers=2 (default: in the trainer's process)"
    )
    gateway_host: str = option("127.0.0.1", "the address the run's gateway listens on")
    gateway_port: int = option(0, "its port, the first one of several workers; 0 picks free ones")
    gateway_public_url: str | None = option(None, "its URL for sessions, if different (needed for sessions on AWS)")
    gateway_url: str | None = option(
        None, "use the gateway that runs at this address, with AGENTCORE_RL_ADMIN_KEY, instead of one of the run's own"
    )
    concurrency: int | str = option(
        32, "sessions that run at the same time; auto: as many as keep the engines full without preemption"
    )
    oversample: int = option(0, "start this many extra rollouts per row and stop the slowest, which prefers short ones")
    dynamic_sampling: bool = option(False, "replace groups without reward variance by further rows")
    min_trained_ratio: float = option(0.0, "mask rollouts whose trained ÷ sampled tokens is below this")
    max_rollout_tokens: int | None = option(None, "mask rollouts with more tokens")
    max_batch_tokens: int | None = option(
        None, "drop the groups that would take a step above this many tokens as they finish, which prefers short ones"
    )
    max_staleness: int | None = option(
        None, "rerun rollouts whose tokens are older than this many updates, which prefers short ones"
    )
    max_failures: int = option(16, "end the run after this many failed rollouts in a row; outages don't count")
    outage_seconds: float = option(300.0, "seconds to wait for a runtime or an engine that is down")
    failures: Mapping[str, str] = option({}, "changes to the failure table, e.g. timeout=train")
    failed_reward: float = option(0.0, "the reward of failed rollouts that the failure table trains on")
    reward: str | None = option(
        None, "score rollouts in the trainer, with FILE:NAME or MODULE:NAME, instead of using the agent's rewards"
    )
    credit: str = option("rollout", "assign credit per rollout, by its last reward, or per turn, by its rewards")
    discount: float = option(1.0, "with credit=turn: the discount per turn")
    process_weight: float = option(1.0, "with credit=turn: the weight of the rewards before the last one")
    eval_every: int = option(0, "evaluate every N steps, besides before and after training")
    eval_samples: int = option(1, "rollouts per held-out row")
    guard: Mapping[str, str] = option({}, "what a guard does: warn, stop or off, e.g. constant_reward=stop")
    guards_from: tuple[str, ...] = option((), "a Python file with more guards; may be repeated")

    at_least_one: ClassVar[tuple[str, ...]] = (
        *TrainSettings.at_least_one,
        *("eval_samples", "max_failures", "max_tokens", "context_limit"),
        *("max_rollout_tokens", "max_batch_tokens"),
    )
    at_least_zero: ClassVar[tuple[str, ...]] = (
        *("eval_every", "gateway_port", "max_staleness", "min_trained_ratio", "oversample"),
    )
    more_than_zero: ClassVar[tuple[str, ...]] = (*TrainSettings.more_than_zero, "temperature", "outage_seconds")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_trained_ratio <= 1:
            raise ConfigError(f"min_trained_ratio must be at most 1, not {self.min_trained_ratio}")
        if self.gateway_port > 65_535:
            raise ConfigError(f"gateway_port must be at most 65535, not {self.gateway_port}")
        self.first_concurrency  # noqa: B018 - refuses other values
        self._check_gateway()
        if self.credit not in ("rollout", "turn"):
            raise ConfigError(f"credit must be rollout or turn, not {self.credit!r}")
        for name in ("discount", "process_weight"):
            if self.credit != "turn" and getattr(self, name) != 1.0:
                raise ConfigError(
                    f"{name}={getattr(self, name)} has no effect on whole rollouts", hint="set credit=turn"
                )
        self.turn_credit  # noqa: B018 - refuses values out of range

    def session_targets(self) -> str | AgentSource | list[str]:
        sandbox = {"env": self.session_env(), "allow": self.allow, "memory_mb": self.memory_mb}
        return resolve_targets(self.agent, self.runtime, **sandbox)

    @property
    def first_concurrency(self) -> int:
        """Sessions that run at the same time, before any load is known."""
        return check_concurrency(self.concurrency)

    @property
    def turn_credit(self) -> TurnCredit | None:
        """How rewards by turn are trained on; None if only the last one is."""
        from ..rollout.signal.credit import TurnCredit

        if self.credit != "turn":
            return None
        return TurnCredit(discount=self.discount, process_weight=self.process_weight)

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters of every model call."""
        from ..rollout import UNALTERED

        asked = {**UNALTERED, "temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def gateway_workers(self) -> int:
        """The processes of the run's gateway; 0 for one in this process."""
        workers = self.gateway.get("workers", 0)
        if not isinstance(workers, int) or isinstance(workers, bool) or not 0 <= workers <= _MOST_WORKERS:
            raise ConfigError(f"gateway: workers must be a whole number up to {_MOST_WORKERS}, not {workers!r}")
        return workers

    @property
    def session_host(self) -> str | None:
        """The host at which sessions that don't run on this machine call the gateway; None if no URL has one."""
        return urlsplit(self.gateway_url or self.gateway_public_url or "").hostname

    def open_gateway(self, engine: Engine, tokenizer: Any, *, routes: bool = False) -> Gateway | GatewayClient:
        """The gateway of this run, where the settings say. No backend trains on images, so it shows none."""
        from ..gateway.gateway import Gateway

        own: dict[str, Any] = {"images": False, "routes": routes}
        if self.gateway_url is not None:
            from ..gateway.remote.gateway_client import GatewayClient

            own["run"] = json.dumps([self.exp_id, self.output, self.model, self.data])  # of all its processes
            return GatewayClient(self.gateway_url, engine=engine, patience=self.outage_seconds, **own)
        own |= {"host": self.gateway_host, "port": self.gateway_port, "public_url": self.gateway_public_url}
        if not self.gateway_workers:
            return Gateway(engine, tokenizer=tokenizer, **own)
        from ..gateway.remote.gateway_processes import GatewayProcesses

        own |= {"workers": self.gateway_workers, "folder": self.folder, "patience": self.outage_seconds}
        return GatewayProcesses(engine, tokenizer, **own)

    def _check_gateway(self) -> None:
        unknown = sorted(self.gateway.keys() - {"workers"})
        if unknown:
            raise ConfigError(f"gateway has no {unknown[0]!r}", hint="its only setting is workers, as in workers=2")
        own = (self.gateway_workers, self.gateway_port, self.gateway_public_url)
        if self.gateway_url is None or not any(own):
            return
        raise ConfigError(
            f"gateway_url {self.gateway_url} can't be combined with settings of the run's own gateway",
            hint="write gateway_public_url for the address at which sessions reach the run's own gateway",
        )

    def rollout_options(self, model: str | None, version: Callable[[], int] = lambda: 0) -> RolloutOptions:
        """The options of this run's rollouts; `version` returns the number of the current weights."""
        from ..rollout import Judge, RolloutOptions, failure_table
        from ..rollout.signal.rescore import load_reward
        from ..rollout.signal.scorer import Scorer

        judge = Judge(
            table=failure_table(self.failures),
            failed_reward=self.failed_reward,
            min_trained_ratio=self.min_trained_ratio,
            max_rollout_tokens=self.max_rollout_tokens,
            max_staleness=self.max_staleness,
            version=version,
            dynamic_sampling=self.dynamic_sampling,
            credit=self.turn_credit,
        )
        return RolloutOptions(
            n=self.n,
            max_concurrent_sessions=cast("Concurrency", self.concurrency),
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
            score=Scorer(load_reward(self.reward)) if self.reward is not None else None,
            keep_dropped=True,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class SavingSettings(RolloutSettings):
    """The settings of backends that save checkpoints in `output` and resume from them."""

    save_every: int = option(20, "save a checkpoint every N steps, and at the end")
    keep: int = option(2, "the number of checkpoints to keep")
    resume: bool = option(False, "resume from the latest checkpoint in output")

    at_least_one: ClassVar[tuple[str, ...]] = (*RolloutSettings.at_least_one, "save_every", "keep")


@dataclass(frozen=True, kw_only=True, repr=False)
class LoopSettings(SavingSettings):
    """The settings of backends whose training loop runs in this process."""

    learning_rate: float = option(1e-5, "the learning rate of the optimizer")
    mix: Mapping[str, float] = option({}, "mix in another data file: this many of its rows for each row of data")
    skip_epochs: int = option(
        0, "leave a row out of this many epochs after all its rollouts had the same reward: it taught nothing"
    )
    async_steps: int = option(
        0, "start rollouts of up to this many later steps while training runs; 0 waits for each step"
    )
    lora_rank: int = option(0, "train a LoRA adapter of this rank; 0 trains all weights")
    chat_template: str | None = option(None, "a Jinja file that replaces the model's chat template")
    report_to: str = option("none", "wandb, mlflow, tensorboard or trackio, if installed; separate several with commas")

    trains_here: ClassVar[bool] = True
    """Whether the weights are on this machine, rather than on a service."""
    at_least_zero: ClassVar[tuple[str, ...]] = (
        *(*SavingSettings.at_least_zero, "lora_rank", "async_steps", "skip_epochs"),
    )
    more_than_zero: ClassVar[tuple[str, ...]] = (*SavingSettings.more_than_zero, "learning_rate")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data in self.mix:
            raise ConfigError(f"mix {self.data} is the file of data itself", hint="name another data file")
        for path, weight in self.mix.items():
            if not isinstance(weight, (int, float)) or isinstance(weight, bool) or not 0 < weight < math.inf:
                hint = "give the number of its rows for each row of data, e.g. 0.5"
                raise ConfigError(f"mix {path} must be a number above 0, not {weight!r}", hint=hint)
        self._check_nothing_is_thrown_away()

    def _check_nothing_is_thrown_away(self) -> None:
        """With `async_steps`, everything that is sampled is trained on, however long it takes."""
        removes = {
            "max_staleness": "it throws old rollouts away",
            "oversample": "it stops slow rollouts",
            "max_batch_tokens": "it drops the groups that finish last",
        }
        for name, what in removes.items():
            if self.async_steps and getattr(self, name) != getattr(type(self), name):
                hint = f"leave {name} out: with async_steps, training waits for no rollout but those of its own step"
                raise ConfigError(f"{name} can't be used with async_steps: {what}", hint=hint)


def read_env_file(path: Path) -> dict[str, str]:
    """The variables of `env`, in the file that is there while a run lasts."""
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        hint = "start the run with agentcore-rl train and --env, which keep them there until the run ends"
        raise ConfigError(f"the variables of sessions can't be read from {path}: {error}", hint=hint) from None
