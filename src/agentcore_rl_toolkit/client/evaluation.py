"""Figures of a set of rollouts: rewards with their uncertainty, `pass@k`, latency, and a comparison of two sets.

`agentcore-rl eval` prints them from stored results. Pure: it reads no store, and its random numbers are an argument.
Inputs, not rollouts, are the unit of every interval: samples of one input resemble each other, so counting them as
independent would overstate the certainty. Rollouts that the agent failed (truncated, timeout, agent_error) count with a
reward of their own, or a model that fails where it is weak would look better than it is.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..agent.result import Result
from ..errors import ConfigError, KeyInvalid, RewardInvalid
from ..types import UNMEASURED, RolloutId, Status

LEVEL = 0.95
"""The confidence of every interval."""
RESAMPLES = 4000
"""Bootstrap samples of a comparison."""
FEWEST_PAIRS = 6
"""Inputs a comparison needs: with fewer, chance puts all differences on one side more than one time in twenty."""
TIE = 1e-12
"""Rewards closer than this differ only by rounding."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class Outcome:
    """The part of one rollout that an evaluation reads."""

    input_id: str
    session_id: str
    status: Status
    reward: float | None
    """The rollout's reward; with one per turn the last, as in rLLM."""
    seconds: float | None
    """From the start of the function to its end."""

    @classmethod
    def from_result(cls, result: Result) -> Outcome:
        """Read a stored result. Missing parts are None or empty; a reward that isn't a number is a `reward_error`.

        >>> Outcome.from_result(Result({"input_id": "row-17", "status_code": 200, "rewards": [0, 0.5]})).reward
        0.5
        """
        settings = result.document.get("_rollout")
        settings = settings if isinstance(settings, Mapping) else {}
        status, reward = result.status, None
        try:
            rewards = result.rewards
            reward = rewards[-1] if isinstance(rewards, list) else rewards
        except RewardInvalid:
            status = Status.REWARD_ERROR if status is Status.COMPLETED else status
        try:
            key = RolloutId.from_key(str(result.document.get("result_key")))
        except KeyInvalid:
            key = None
        input_id = result.document.get("input_id") or (key.input_id if key else "")
        session_id = settings.get("session_id") or (key.session_id if key else "")
        return cls(str(input_id), str(session_id), status, reward, result.seconds)

    @property
    def failed(self) -> bool:
        """Whether the agent failed it."""
        return self.status is not Status.COMPLETED and self.status not in UNMEASURED

    def score(self, failed_reward: float) -> float | None:
        """What it counts for in a mean; None if it doesn't count."""
        return failed_reward if self.failed else self.reward if self.status is Status.COMPLETED else None

    def passed(self, threshold: float) -> bool:
        """Whether it ran to its end with a reward of at least `threshold`."""
        return self.status is Status.COMPLETED and self.reward is not None and self.reward >= threshold


@dataclass(frozen=True)
class PassAtK:
    """The chance that at least one of `k` samples of an input passes."""

    k: int
    value: float | None
    """Averaged over inputs; None if no input has `k` samples."""
    inputs: int
    excluded: int
    """Inputs with fewer than `k` samples."""


@dataclass(frozen=True)
class Latency:
    """How long rollouts took, in seconds, failed ones included. Each is a value that occurred (nearest rank)."""

    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class Summary:
    """One set of rollouts in figures."""

    rollouts: int
    inputs: int
    completed: int
    failed: dict[Status, int]
    """How many ended in each status other than completed, most frequent first."""
    rewarded: int
    """Completed rollouts that have a reward. With those that the agent failed, they are the ones in `reward`."""
    reward: float | None
    """The mean over inputs of the mean over an input's rollouts: every input weighs the same."""
    interval: Interval | None
    """95 % confidence interval of `reward` (Student's t over inputs), cut off at 0 and 1 if every reward is between
    them; None with fewer than two inputs.
    """
    threshold: float
    """The least reward of a rollout that passed."""
    pass_at: list[PassAtK]
    latency: Latency | None
    failed_reward: float = 0.0
    """The reward with which rollouts that the agent failed count."""

    @property
    def counted_failures(self) -> int:
        """Rollouts that the agent failed."""
        return sum(count for status, count in self.failed.items() if status not in UNMEASURED)

    @property
    def error(self) -> float | None:
        """About the standard error of `reward`: half of the interval's longer side, which is the one not cut off."""
        if self.reward is None or self.interval is None:
            return None
        return max(self.reward - self.interval[0], self.interval[1] - self.reward) / 2

    def rows(self) -> list[list[str]]:
        """Label and value, for a table."""
        rows = [["rollouts", str(self.rollouts)], ["inputs", str(self.inputs)], ["completed", str(self.completed)]]
        rows += [[f"failed: {status.value}", str(count)] for status, count in self.failed.items()]
        if self.completed > self.rewarded:
            rows += [["completed without a reward", str(self.completed - self.rewarded)]]
        if self.counted_failures:
            rows += [[f"failures counted as {_number(self.failed_reward)}", str(self.counted_failures)]]
        rows += [["mean reward", _with_interval(self.reward, self.interval)]]
        for entry in self.pass_at:
            note = f" ({entry.excluded} of {self.inputs} inputs have too few samples)" if entry.excluded else ""
            rows += [[f"pass@{entry.k}", _number(entry.value) + note]]
        if self.latency is not None:
            rows += [[f"seconds, {name}", f"{x:.2f}"] for name, x in dataclasses.asdict(self.latency).items()]
        return rows

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        return dataclasses.asdict(self) | {"failed": {status.value: count for status, count in self.failed.items()}}


@dataclass(frozen=True)
class Comparison:
    """Two sets of rollouts, `a` and `b`, on the inputs that have a reward in both."""

    both: int
    only_a: int
    """Inputs that count in `a` alone: not run in `b`, or lost there. They count in no figure below."""
    only_b: int
    wins: int
    """Inputs on which `b` has the higher mean reward."""
    losses: int
    ties: int
    difference: float | None
    """Mean over inputs of `b`'s reward less `a`'s."""
    interval: Interval | None
    """95 % confidence interval of `difference` (paired bootstrap); None with fewer than `FEWEST_PAIRS` in both."""
    failed_a: int = 0
    """Rollouts that the agent failed in `a`; they count with `failed_reward`."""
    failed_b: int = 0
    failed_reward: float = 0.0

    @property
    def verdict(self) -> str:
        """One sentence for people."""
        if self.difference is None:
            return "nothing to compare: no input has a reward in both"
        if self.interval is None:
            return f"no difference can be told apart: inputs in both are {self.both}, and it takes {FEWEST_PAIRS}"
        low, high = self.interval
        where = f", on the {self.both} inputs in both" if self.only_a or self.only_b else ""
        if self.failed_a or self.failed_b:
            where += f"; {self.failed_a} failures of a and {self.failed_b} of b count as {_number(self.failed_reward)}"
        if low > TIE:
            return f"b is better by {_with_interval(self.difference, (low, high))}{where}"
        if high < -TIE:
            return f"a is better by {_with_interval(-self.difference, (-high, -low))}{where}"
        return f"no difference can be told apart: b - a is {_with_interval(self.difference, (low, high))}{where}"

    def rows(self) -> list[list[str]]:
        """Label and value, for a table."""
        counted = f"failures counted as {_number(self.failed_reward)}"
        failures = [[f"{counted} in a", str(self.failed_a)], [f"{counted} in b", str(self.failed_b)]]
        return [
            ["inputs in both", str(self.both)],
            ["only in a", str(self.only_a)],
            ["only in b", str(self.only_b)],
            ["b wins", str(self.wins)],
            ["a wins", str(self.losses)],
            ["ties", str(self.ties)],
            *(failures if self.failed_a or self.failed_b else ()),
            ["mean difference, b - a", _with_interval(self.difference, self.interval)],
        ]

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON values."""
        return dataclasses.asdict(self) | {"verdict": self.verdict}


def summarize(
    outcomes: Iterable[Outcome], *, ks: Sequence[int] = (1,), threshold: float = 1.0, failed_reward: float = 0.0
) -> Summary:
    """Figures of one set of rollouts; see `Summary` for what each one means.

    >>> rollouts = [Outcome("row-1", f"s{i}", Status.COMPLETED, reward, 2.0) for i, reward in enumerate([0.0, 1.0])]
    >>> summary = summarize(rollouts, ks=(1, 2))
    >>> summary.reward, [entry.value for entry in summary.pass_at]
    (0.5, [0.5, 1.0])
    """
    outcomes = list(outcomes)
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.input_id].append(outcome)
    statuses = Counter(outcome.status for outcome in outcomes)
    completed = statuses.pop(Status.COMPLETED, 0)
    scores = list(_scores(outcomes, failed_reward).values())
    rewards = [score for o in outcomes if (score := o.score(failed_reward)) is not None]
    seconds = sorted(outcome.seconds for outcome in outcomes if outcome.seconds is not None)
    return Summary(
        rollouts=len(outcomes),
        inputs=len(groups),
        completed=completed,
        failed=dict(statuses.most_common()),
        rewarded=len(rewards) - sum(o.failed for o in outcomes),
        reward=statistics.fmean(scores) if scores else None,
        interval=reward_interval(scores, min(rewards, default=0.0), max(rewards, default=0.0)),
        threshold=threshold,
        pass_at=[_pass_at(k, list(groups.values()), threshold) for k in ks],
        latency=Latency(*(_percentile(seconds, p) for p in (0.5, 0.9, 0.99, 1.0))) if seconds else None,
        failed_reward=failed_reward,
    )


def compare(
    a: Iterable[Outcome],
    b: Iterable[Outcome],
    *,
    dice: Callable[[], float] | None = None,
    resamples: int = RESAMPLES,
    failed_reward: float = 0.0,
) -> Comparison:
    """Compare two sets input by input: by how much is `b` better, and could it be chance?

    The interval is a paired bootstrap over inputs, its tails widened for small samples as in Hesterberg, "What Teachers
    Should Know About the Bootstrap" (2015). Without `dice` they are seeded: the same sets give the same interval.
    """
    a, b = list(a), list(b)
    of_a, of_b = _scores(a, failed_reward), _scores(b, failed_reward)
    differences = [of_b[key] - of_a[key] for key in of_a if key in of_b]
    wins, losses = (sum(sign * d > TIE for d in differences) for sign in (1, -1))
    return Comparison(
        both=len(differences),
        only_a=len(of_a.keys() - of_b.keys()),
        only_b=len(of_b.keys() - of_a.keys()),
        wins=wins,
        losses=losses,
        ties=len(differences) - wins - losses,
        difference=statistics.fmean(differences) if differences else None,
        interval=_bootstrap(differences, dice or random.Random(0).random, resamples),
        failed_a=sum(outcome.failed for outcome in a if outcome.input_id in of_b),
        failed_b=sum(outcome.failed for outcome in b if outcome.input_id in of_a),
        failed_reward=failed_reward,
    )


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The unbiased estimate of `pass@k` from one input's samples: 1 - C(samples - passed, k) / C(samples, k).

    >>> pass_at_k(samples=4, passed=1, k=2)
    0.5
    """
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


@functools.lru_cache(maxsize=1024)  # a run's steps have as many rows each, and the page asks about all of them
def t_quantile(p: float, df: int) -> float:
    """The value that Student's t with `df` degrees of freedom stays below with probability `p`, for p from 0.5 up.

    >>> round(t_quantile(0.975, 10), 4)
    2.2281
    """
    high = 1.0
    while _t_within(high, df) < 2 * p - 1:
        high *= 2
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, df) < 2 * p - 1 else (low, middle)
    return high


def _t_within(t: float, df: int) -> float:
    """P(|T| ≤ t), as the finite series for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(df))
    odd, cos = df % 2, math.cos(angle)
    term = cos if odd else 1.0
    total = 0.0 if df == 1 else term
    for i in range(3 if odd else 2, df, 2):
        term *= cos * cos * (i - 1) / i
        total += term
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total


def _scores(outcomes: Iterable[Outcome], failed_reward: float) -> dict[str, float]:
    """The mean reward of each input's rollouts, for the inputs that have any that count."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        if (score := outcome.score(failed_reward)) is not None:
            rewards[outcome.input_id].append(score)
    return {input_id: statistics.fmean(values) for input_id, values in rewards.items()}


def mean_interval(values: list[float]) -> Interval | None:
    """The interval of the mean of values, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None
    half = t_quantile((1 + LEVEL) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def reward_interval(means: list[float], least: float, most: float) -> Interval | None:
    """The interval of the mean of rewards that lie between `least` and `most`: within [0, 1] if all rewards are.

    >>> reward_interval([0.0, 1.0], 0, 1), reward_interval([2.0, 2.0], 2, 2)
    ((0.0, 1.0), (2.0, 2.0))
    """
    interval = mean_interval(means)
    if interval is None or least < 0 or most > 1:
        return interval
    return max(0.0, interval[0]), min(1.0, interval[1])


def _bootstrap(values: list[float], dice: Callable[[], float], resamples: int) -> Interval | None:
    n = len(values)
    if n < FEWEST_PAIRS:
        return None
    means = sorted(math.fsum(values[int(dice() * n)] for _ in range(n)) / n for _ in range(resamples))
    tail = statistics.NormalDist().cdf(-math.sqrt(n / (n - 1)) * t_quantile((1 + LEVEL) / 2, n - 1))
    return _percentile(means, tail), _percentile(means, 1 - tail)


def _pass_at(k: int, groups: list[list[Outcome]], threshold: float) -> PassAtK:
    if k < 1:
        raise ConfigError(f"pass@k needs a k of at least 1, not {k}")
    enough = [group for group in groups if len(group) >= k]
    values = [pass_at_k(len(group), sum(o.passed(threshold) for o in group), k) for group in enough]
    return PassAtK(k, statistics.fmean(values) if values else None, len(enough), len(groups) - len(enough))


def _percentile(ordered: list[float], p: float) -> float:
    """Nearest rank: the smallest value that at least a share `p` of them does not exceed."""
    return ordered[max(0, math.ceil(p * len(ordered)) - 1)]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 12) + 0.0:.4g}"


def _with_interval(value: float | None, interval: Interval | None) -> str:
    return _number(value) + (f" [{_number(interval[0])}, {_number(interval[1])}]" if interval else "")


_VARIES = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]+)*|\d+")


def general_message(message: str) -> str:
    """An error's message without what varies between two reports of one cause: addresses, ids, numbers.

    >>> general_message("KeyError: 'row 17' at 0x7f0a")
    "KeyError: 'row #' at #"
    """
    return _VARIES.sub("#", message)
