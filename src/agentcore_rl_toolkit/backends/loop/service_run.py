"""A run whose weights a service keeps: rows → rollouts → examples → an optimizer step there → the next weights.

    step k:  loop.groups            sessions → gateway → engine → the service's sampler     (weights after k updates)
             to_examples            groups → examples
             weights.update         a pass and an optimizer step on the service              → k + 1

With `async_steps`, step k's groups were sampled with the weights of earlier updates too, and `updated` takes the
running sessions to the new ones: a model call ends with the weights it began with.

An update is several requests. Ctrl-C waits for all of them: otherwise the step that the run counts and the step that
the weights have taken would differ.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from ...common.trackers import open_trackers
from ...engine.services.service_engine import ServiceEngine
from ...gateway.render.tokenizer import load_tokenizer
from .checkpoint_folder import CheckpointFolder
from .report import Report
from .service_examples import Example, log_ratios_by_row, to_examples
from .service_settings import ServiceSettings
from .training_loop import TrainingLoop, delay_interrupt


class ServiceWeights(Protocol):
    """The weights of one run, as a service trains, samples and saves them: the seam between loop and service."""

    def engine(self, version: str) -> ServiceEngine:
        """An engine that samples with the current weights."""

    def sampler(self) -> Any:
        """The current weights, for `update` of the engine."""

    def update(self, examples: Sequence[Example]) -> dict[str, float]:
        """Take one optimizer step with examples that move the weights, and return its metrics."""

    def save(self, step: int) -> dict[str, str]:
        """Save the weights with the optimizer, and the weights to sample from; their names there."""

    def delete(self, names: Mapping[str, str]) -> None:
        """Delete what was saved under these names, if the service allows it."""


Names = dict[str, Any]
"""What a checkpoint holds: the names of what the service keeps, and the step."""


class ServiceRun:
    """One run on `service`. `open_weights` makes new weights, or restores those of a checkpoint."""

    weights: ServiceWeights
    engine: ServiceEngine

    def __init__(
        self,
        settings: ServiceSettings,
        service: str,
        open_weights: Callable[[Names | None], AbstractContextManager[ServiceWeights]],
        report: Report | None = None,
    ) -> None:
        self.settings, self._open, report = settings, open_weights, report or Report(settings)
        self.step = 0
        """Updates so far: the version of the weights."""
        self._file = f"{service}.json"
        self.folder = CheckpointFolder(settings.folder, self._is_complete, resume=settings.resume)
        self.loop = TrainingLoop(
            settings, report, self.folder, version=lambda: self.step, update_engine=self._update_engine
        )

    def run(self) -> dict[str, Any]:
        """Train and return the summary, which is also written to `summary.json`."""
        settings = self.settings
        tokenizer = load_tokenizer(settings.tokenizer or settings.model, settings.chat_template)
        with (
            self.folder.opened() as start,
            open_trackers(settings.report_to, settings.folder, self.loop.describe()) as self._track,
            self._open(None if start is None else self._read(start)) as self.weights,
        ):
            self.step = start or 0
            self.engine = self.weights.engine(str(self.step))
            summary = self.loop.run(
                self.engine, tokenizer, start, train=self._train, save=self._save, model=settings.model
            )
        latest = self.folder.latest()
        summary |= {} if latest is None else {"saved": self._read(latest)}
        (settings.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        return summary

    def _update_engine(self, step: int) -> None:
        if self.engine.weight_version != str(step):
            self.engine.update(self.weights.sampler(), str(step))

    def _train(self) -> None:
        self.loop.evaluate_if_due(self.step)
        while self.step < self.settings.steps:
            self._step()
            if self.step % self.settings.save_every == 0:
                with delay_interrupt():
                    self._save()
            self.loop.evaluate_if_due(self.step)

    def _step(self) -> None:
        settings, began = self.settings, time.monotonic()
        groups = self.loop.groups(self.step)
        examples = to_examples(groups, scale=settings.scale_advantages, per=settings.per, credit=settings.turn_credit)
        self.loop.add_advantages({one.rollout.session_id or "": one.advantage for one in examples})
        rolled = time.monotonic()
        with delay_interrupt():
            figures = update_weights(self.weights, examples)
            self.step += 1
        self.loop.add_ratios(log_ratios_by_row(examples))
        now = time.monotonic()
        figures |= {"seconds/update": now - rolled, "step_time": now - began}
        metrics = self.loop.metrics | figures
        metrics |= self.loop.judge(self.step, metrics)
        self._track(self.step, metrics)
        self.loop.end_step(self.step, metrics)
        self.loop.updated(self.step)

    # --- checkpoints: a small file with the names of what the service keeps ------------------------------------------

    def _save(self) -> None:
        place = self.folder.checkpoint(self.step)
        if not self.step or self._is_complete(place):
            return
        names = {"step": self.step, **self.weights.save(self.step), "model": self.settings.model}
        place.mkdir(parents=True, exist_ok=True)
        unfinished = place / f"{self._file}.unfinished"
        unfinished.write_text(json.dumps(names, indent=2) + "\n")
        unfinished.rename(place / self._file)  # a kill leaves a whole checkpoint or none
        for old in self.folder.checkpoints()[: -self.settings.keep]:
            names = json.loads((old / self._file).read_text())
            (old / self._file).unlink()
            old.rmdir()
            self.weights.delete(names)

    def _read(self, step: int) -> Names:
        names: Names = json.loads((self.folder.checkpoint(step) / self._file).read_text())
        return names

    def _is_complete(self, place: Path) -> bool:
        return (place / self._file).is_file()


def update_weights(weights: ServiceWeights, examples: Sequence[Example]) -> dict[str, float]:
    """Take a step with the examples that move the weights: those with advantage 0 change nothing, and cost tokens."""
    moving = [example for example in examples if example.has_advantage]
    figures: dict[str, float] = {"rows/run": len(examples), "rows/trained": len(moving)}
    return figures | (weights.update(moving) if moving else {})
