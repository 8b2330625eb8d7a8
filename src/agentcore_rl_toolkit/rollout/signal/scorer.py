"""`Scorer`: rewards that the trainer's side gives a group of rollouts once the group is complete.

A reward function is called as `rescore` calls it: by the names of its parameters, once per rollout, or, if it takes
`responses` or `rollouts`, once per group. Functions run on daemon threads: a judge may take minutes, and must not delay
the end of the process. An exception becomes `reward_error`; only a `ConfigError` ends the run, because it would fail
every other rollout too.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...agent.reward import normalize_rewards
from ...errors import ConfigError, RewardInvalid
from ...rewards.judges.judge_model import JudgeUsage
from ...types import Status
from ..judge import Judge
from ..rollout import Action, Group, Rollout
from .rescore import Score, known_of, wanted

_CALLS = 16
"""The most calls at a time."""


class Scorer:
    """Scores the rollouts of complete groups with one reward function."""

    def __init__(self, score: Score) -> None:
        self._score = score
        names = inspect.signature(score).parameters
        self.ranks = "responses" in names or "rollouts" in names
        """Whether it compares a group's rollouts with each other."""
        self._slots = threading.BoundedSemaphore(_CALLS)

    @property
    def usage(self) -> JudgeUsage | None:
        """What its judge has cost so far; None if the function doesn't say."""
        usage = getattr(self._score, "usage", None)
        return usage if isinstance(usage, JudgeUsage) else None

    async def score_group(self, group: Group, judge: Judge) -> Group:
        """The group with new rewards for the rollouts that are to be trained on, judged again."""
        rollouts = group.trained
        found = await self._scores(rollouts)
        scored = {id(rollout): _judged(rollout, one, judge) for rollout, one in zip(rollouts, found, strict=True)}
        return replace(group, rollouts=tuple(scored.get(id(rollout), rollout) for rollout in group.rollouts))

    async def _scores(self, rollouts: Sequence[Rollout]) -> list[Any]:
        """For each rollout its rewards, or the exception in their place."""
        if not self.ranks:
            return await asyncio.gather(*(self._call(self._score_one, rollout) for rollout in rollouts))
        if len(rollouts) < 2:  # nothing to compare; the group is dropped for that reason
            return [None] * len(rollouts)
        found = await self._call(self._score_all, rollouts)
        return [found] * len(rollouts) if isinstance(found, Exception) else list(found)

    async def _call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """What a function returns or raises."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def settle(found: Any) -> None:
            if not done.done():  # it may have been cancelled
                done.set_result(found)

        def work() -> None:
            with self._slots:
                found = _returned_or_raised(function, argument)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, found)

        threading.Thread(target=work, name="rewards", daemon=True).start()
        found = await done
        if isinstance(found, ConfigError):
            raise found
        return found

    def _score_one(self, rollout: Rollout) -> Any:
        return normalize_rewards(self._score(**wanted(self._score, known_of(rollout))))

    def _score_all(self, rollouts: Sequence[Rollout]) -> list[Any]:
        known = [known_of(rollout) for rollout in rollouts]
        same = known[0]["payload"]
        responses = [one["response_text"] or "" for one in known]
        together = {**same, "payload": same, "rollouts": list(rollouts), "responses": responses}
        given = self._score(**wanted(self._score, together))
        if not isinstance(given, (list, tuple)) or len(given) != len(rollouts):
            count = len(given) if isinstance(given, (list, tuple)) else type(given).__name__
            raise RewardInvalid(f"the reward gave {count}, not a list of {len(rollouts)}, one for each rollout")
        return [one if isinstance(one, Exception) else normalize_rewards(one) for one in given]


def _returned_or_raised(function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except Exception as error:
        return error
    except BaseException as error:  # a reward that calls sys.exit ends nothing but itself
        return RewardInvalid(f"the reward raised {type(error).__name__}: {error}")


def _judged(rollout: Rollout, rewards: Any, judge: Judge) -> Rollout:
    """The rollout with its rewards, or with what went wrong. It is too late to run another in its place."""
    if isinstance(rewards, Exception):
        problem = f"{type(rewards).__name__}: {rewards}"
        rollout = replace(rollout, rewards=None, status=Status.REWARD_ERROR, error=problem)
    else:
        rollout = replace(rollout, rewards=rewards)
    judged = judge.rollout(rollout)
    return replace(judged, action=Action.MASK) if judged.action is Action.REFILL else judged
