"""One run: rows → rollouts → Datums → a step on the service → the next weights to sample with.

    step k:  loop.groups            sessions → gateway → engine → SamplingClient     (weights after k updates)
             to_examples            groups → Datums
             weights.update         forward_backward, optim_step                      → k + 1

An update is never cut in two: Ctrl-C waits for it, and whatever else ends the run, the checkpoint before it is whole.
"""

from __future__ import annotations

import contextlib
import functools
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...engine.tinker import TinkerEngine
from ...errors import AgentCoreRLError
from ...gateway.gateway import Gateway
from ...gateway.render.tokenizer import load_tokenizer
from ...rollout import RolloutRunner
from ..loop.report import Report
from ..loop.run_folder import RunFolder, step_of
from ..loop.training_loop import Loop
from .backend import TinkerSettings
from .convert import to_examples
from .weights import Weights, whole


def train(settings: TinkerSettings, *, report: Report | None = None) -> dict[str, Any]:
    """Train; gives the summary that is also written to `summary.json`."""
    return _Run(settings, report or Report(settings)).run()


class _Run:
    def __init__(self, settings: TinkerSettings, report: Report) -> None:
        self.settings, self.report = settings, report
        self.folder = RunFolder(settings, whole)
        self.loop = Loop(settings, report, self.folder, update=self.update)
        self.step = 0
        """Updates so far: the version of the weights."""

    def run(self) -> dict[str, Any]:
        settings = self.settings
        tokenizer = load_tokenizer(settings.tokenizer or settings.model, settings.chat_template)
        start = self.folder.prepare()
        self.step = start or 0
        checkpoint = None if start is None else self.folder.checkpoint(start)
        with contextlib.ExitStack() as stack:
            self.weights = stack.enter_context(Weights(settings, checkpoint))
            self.engine = self._open_engine()
            gateway = stack.enter_context(Gateway(self.engine, tokenizer=tokenizer, **settings.gateway))
            client = stack.enter_context(settings.client())
            options = settings.rollout_options(settings.model, lambda: self.step)
            self.loop.runner = stack.enter_context(contextlib.closing(RolloutRunner(client, gateway, options)))
            stack.enter_context(self.report)
            self.report.say(gateway.abilities.line)
            if start is None:
                self.loop.evaluate(0)
            else:
                self.loop.go_on(start)
            interrupted = self._train()
            if not interrupted:
                self._save()
                self.loop.evaluate(self.step)
            return self.loop.finish(self.step, interrupted=interrupted, decode=tokenizer.decode)

    def update(self, step: int) -> None:
        """Let the engine sample with the weights of this step."""
        if self.engine.weight_version != str(step):
            self.engine.update(self.weights.sampler(), str(step))

    def _open_engine(self) -> TinkerEngine:
        return TinkerEngine(
            self.weights.sampler(),
            name=self.settings.model,
            context_length=self.weights.context_length,
            weight_version=str(self.step),
            timeout=self.settings.timeout,
        )

    def _train(self) -> bool:
        """All steps; True if it was interrupted, with a checkpoint made."""
        try:
            while self.step < self.settings.steps:
                self._step()
                if self.step % self.settings.save_every == 0:
                    self._save()
                every = self.settings.eval_every
                if every and self.step % every == 0 and self.step < self.settings.steps:
                    self.loop.evaluate(self.step)
        except KeyboardInterrupt:
            self.report.say("interrupted; saving a checkpoint …")
            self._save()
            return True
        except AgentCoreRLError:
            with contextlib.suppress(AgentCoreRLError):  # the first one says why
                self._save()
            raise
        return False

    def _step(self) -> None:
        settings, began = self.settings, time.monotonic()
        groups = self.loop.groups(rows_of(self.loop.rows, self.step, settings.rows_per_step, settings.seed), self.step)
        examples = to_examples(groups, scale=settings.scale_advantages, per=settings.per)
        rolled = time.monotonic()
        with held_back():
            figures = self.weights.update(examples)
            self.step += 1
        now = time.monotonic()
        figures |= {"seconds/update": now - rolled, "step_time": now - began}
        self.report.stepped(self.step, self.loop.metrics | figures)

    def _save(self) -> None:
        place = self.folder.checkpoint(self.step)
        if not self.step or whole(place):
            return
        with held_back():
            self.weights.save(place, self.step)
            for old in _sorted(place.parent)[: -self.settings.keep]:
                self.weights.forget(old)


def rows_of(rows: Sequence[dict[str, Any]], step: int, count: int, seed: int) -> list[dict[str, Any]]:
    """A step's rows: all of them in an order drawn by lot, then all again in another. The same on every run."""
    chosen = []
    for place in range(step * count, (step + 1) * count):
        epoch, at = divmod(place, len(rows))
        chosen.append(rows[_order(seed, epoch, len(rows))[at]])
    return chosen


@functools.lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    return random.Random(f"{seed}/{epoch}").sample(range(count), count)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    known = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, known)
    if came:
        raise KeyboardInterrupt


def _sorted(checkpoints: Path) -> list[Path]:
    return sorted(filter(whole, checkpoints.glob("checkpoint-*")), key=step_of)
