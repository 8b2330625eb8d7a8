"""Rollouts that are added while others run, on one set of slots: whole steps, or single groups.

A free slot takes the next rollout of the first step or group that has one, so a rollout that takes long holds its slot
and keeps no other slot waiting. They start in the order in which they were added; when is their caller's decision.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..client.scheduler import JobGroup
from ..common.object_repr import object_repr
from ..errors import RolloutCancelled
from .rollout import Group, Rollout
from .runner import OnRollout, RolloutRunner, Step

Groups = concurrent.futures.Future[list[Group]]


class RolloutStream:
    """Runs steps on a runner's loop; safe to call from several threads."""

    def __init__(self, runner: RolloutRunner) -> None:
        self._runner = runner
        self._steps: dict[Step, Groups] = {}
        """The steps that are not over, in the order in which they may open groups."""
        self._ending: BaseException | None = None
        """Why nothing runs any more."""
        patience = Step(runner, (), None, None, runner.options).patience
        self._loop = runner.make_loop(self._open_group, patience=patience, stays_open=True)
        self._watching = runner.loop.submit(self._watch())

    def __repr__(self) -> str:
        return object_repr(self, self._runner, steps=len(self._steps))

    def add(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        groups: int | None = None,
        on_rollout: OnRollout | None = None,
        first: bool = False,
        **changes: Any,
    ) -> Groups:
        """Run rows after those that were added before, or before them if `first` is set.

        The future has the groups in the order they finished, or the error that ended the stream; the other
        arguments are those of `RolloutRunner.run`.
        """
        step = Step(self._runner, rows, groups, on_rollout, replace(self._runner.options, **changes))
        future = Groups()
        future.set_running_or_notify_cancel()
        self._runner.loop.loop.call_soon_threadsafe(self._add, step, future, first)
        return future

    @property
    def slots(self) -> int:
        """How many rollouts may run at the same time now."""
        return self._runner.limit.most

    def usage(self) -> tuple[float, float]:
        """The time, and the seconds for which slots have been in use by then, all together."""
        return self._runner.loop.run(self._usage())

    def close(self) -> None:
        """Cancel every rollout that runs, and wait until they have cleaned up."""
        self._runner.loop.run(self._loop.close())
        with contextlib.suppress(BaseException):
            self._watching.result()

    # --- on the runner's loop ----------------------------------------------------------------------------------------

    def _add(self, step: Step, future: Groups, first: bool) -> None:
        if self._ending is not None:
            future.set_exception(self._ending)
            return
        found: list[Group] = []

        def hand_out(group: Group) -> None:
            found.append(group)

        step.hand_out = hand_out
        step.over = lambda: self._steps.pop(step).set_result(found)
        if step.is_over:
            future.set_result(found)
            return
        self._steps = {step: future} | self._steps if first else self._steps | {step: future}
        self._loop.wake()

    def _open_group(self) -> JobGroup[Any, Rollout] | None:
        for step in self._steps:
            group = step.open_group()
            if group is not None:
                return group
        return None

    async def _usage(self) -> tuple[float, float]:
        return self._loop.usage()

    async def _watch(self) -> None:
        """Wait for the loop's end, and tell everyone who waits for a step why it ended."""
        ending: BaseException = RolloutCancelled("the rollouts were cancelled")
        try:
            await self._loop.next()
        except Exception as error:
            ending = error
        finally:
            self._ending = ending
            for future in self._steps.values():
                future.set_exception(ending)
            self._steps.clear()
