"""`RolloutOptions`: how rollouts run. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..client.session_limit import Concurrency, check_concurrency
from ..errors import ConfigError
from .judge import Judge

if TYPE_CHECKING:
    from .signal.scorer import Scorer

UNALTERED: Mapping[str, Any] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling settings that leave the policy's distribution unchanged, for a trainer's `enforced`: agents ask for others,
and servers take their defaults from a model's `generation_config.json`."""


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """How rollouts run."""

    n: int = 8
    """Samples of each row: the size of a group."""
    max_concurrent_sessions: Concurrency = 32
    """Sessions at a time; `auto` for as many as keep the engines full without preemption."""
    timeout: float | None = 900.0
    """Seconds a rollout may take."""
    oversample: int = 0
    """Extra samples of each row; once `n` can be trained on, the others are cancelled."""
    max_refills: int = 4
    """How many samples of a group may run again, an outage counted once; an incomplete group is dropped."""
    max_failures: int = 16
    """This many rollouts in a row that can't be trained on end the run; lost sessions and engines don't count."""
    outage_seconds: float = 300.0
    """The run ends after this many seconds in which every rollout lost its session or its engine. Until then they run
    again, less and less often."""
    max_batch_tokens: int | None = None
    """The first group beyond this many tokens is dropped, and no further one starts."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Default sampling settings of model calls; the agent gets them as `sampling_params`."""
    enforced: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings that override the agent's."""
    seed: str | None = None
    """Seeds sampling. The seed of a model call follows from this, its row's place in the input, its sample's number and
    its prompt; None leaves sampling unseeded."""
    context_limit: int | None = None
    """Most tokens of prompt and reply of one model call."""
    model: str | None = None
    """The model to sample from, whatever name the agent has in its code; by default, the gateway's first."""
    side_calls: Mapping[str, Any] | None = None
    """Which model calls are not trained on (titles, commit messages, memory), e.g. `{"model": "*haiku*"}`."""
    judge: Judge = field(default_factory=Judge)
    score: Scorer | None = None
    """Gives rollouts their rewards when their group is complete, instead of the agent."""
    evaluation: bool = False
    """Evaluations don't rank: a `score` that compares rollouts with each other leaves the agent's rewards."""
    keep_dropped: bool = False
    """Yield dropped groups too."""

    @property
    def scorer(self) -> Scorer | None:
        """What scores a complete group, if anything does."""
        return None if self.score is None or (self.evaluation and self.score.ranks) else self.score

    def __post_init__(self) -> None:
        check_concurrency(self.max_concurrent_sessions, "max_concurrent_sessions")
        least = {"n": 1, "max_failures": 1, "oversample": 0, "max_refills": 0}
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ConfigError(f"{name} must be at least {bound}, not {getattr(self, name)}")
        if not self.outage_seconds > 0:
            raise ConfigError(f"outage_seconds must be more than 0, not {self.outage_seconds}")
        if self.side_calls is not None:
            from ..gateway.call.side_calls import read_rules

            read_rules(self.side_calls)
