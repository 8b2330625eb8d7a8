"""A run with Tinker: rows → rollouts → Datums → an optimizer step on the service → the next weights to sample with.

    step k:  loop.groups            sessions → gateway → engine → SamplingClient     (weights after k updates)
             to_examples            groups → Datums
             weights.update         forward_backward, optim_step                      → k + 1

With `async_steps`, step k's groups were sampled with the weights of earlier updates too, and `updated` takes the
running sessions to the new ones: a model call ends with the weights it began with.

An update is two requests. Ctrl-C waits for both: otherwise the step that the run counts and the step that the weights
have taken would differ.
"""

from __future__ import annotations

import time
from typing import Any

from ...engine.tinker import TinkerEngine
from ...gateway.render.tokenizer import load_tokenizer
from ..loop.checkpoint_folder import CheckpointFolder
from ..loop.report import Report
from ..loop.row_order import rows_of_step
from ..loop.training_loop import TrainingLoop, delay_interrupt
from .backend import TinkerSettings
from .convert import to_examples
from .weights import TinkerWeights, is_complete


def train(settings: TinkerSettings, *, report: Report | None = None) -> dict[str, Any]:
    """Train and return the summary, which is also written to `summary.json`."""
    return _TinkerRun(settings, report or Report(settings)).run()


class _TinkerRun:
    weights: TinkerWeights
    engine: TinkerEngine

    def __init__(self, settings: TinkerSettings, report: Report) -> None:
        self.settings, self.report = settings, report
        self.step = 0
        """Updates so far: the version of the weights."""
        self.folder = CheckpointFolder(settings, is_complete)
        self.loop = TrainingLoop(
            settings, report, self.folder, version=lambda: self.step, update_engine=self._update_engine
        )

    def run(self) -> dict[str, Any]:
        settings = self.settings
        tokenizer = load_tokenizer(settings.tokenizer or settings.model, settings.chat_template)
        start = self.folder.prepare()
        self.step = start or 0
        with TinkerWeights(settings, None if start is None else self.folder.checkpoint(start)) as self.weights:
            self.engine = TinkerEngine(
                self.weights.sampler(),
                name=settings.model,
                context_length=self.weights.context_length,
                weight_version=str(self.step),
                timeout=settings.timeout,
            )
            return self.loop.run(
                self.engine, tokenizer, start, train=self._train, save=self._save, model=settings.model
            )

    def _update_engine(self, step: int) -> None:
        if self.engine.weight_version != str(step):
            self.engine.update(self.weights.sampler(), str(step))

    def _train(self) -> None:
        while self.step < self.settings.steps:
            self._step()
            if self.step % self.settings.save_every == 0:
                with delay_interrupt():
                    self._save()
            self.loop.evaluate_if_due(self.step)

    def _step(self) -> None:
        settings, began = self.settings, time.monotonic()
        rows = rows_of_step(self.loop.rows, self.step, settings.rows_per_step, settings.seed)
        groups = self.loop.groups(rows, self.step)
        examples = to_examples(groups, scale=settings.scale_advantages, per=settings.per, credit=settings.turn_credit)
        self.loop.add_advantages({one.rollout.session_id or "": one.advantage for one in examples})
        rolled = time.monotonic()
        with delay_interrupt():
            figures = self.weights.update(examples)
            self.step += 1
        now = time.monotonic()
        figures |= {"seconds/update": now - rolled, "step_time": now - began}
        metrics = self.loop.metrics | figures
        self.loop.end_step(self.step, metrics | self.loop.judge(self.step, metrics))
        self.loop.updated(self.step)

    def _save(self) -> None:
        place = self.folder.checkpoint(self.step)
        if self.step and not is_complete(place):
            self.weights.save(place, self.step)
            for old in self.folder.checkpoints()[: -self.settings.keep]:
                self.weights.delete(old)
