"""Guards of a run: judges every step by the rules, says each finding once, and ends the run where it is asked to.

Findings go to `guards.jsonl` in the run's folder and to whoever asks. A rule that fails is reported and left out: a
guard never ends a run by its own fault.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...common.text_table import escape
from ...errors import ConfigError, RolloutsStopped
from ...rollout import Group, Rollout
from ...rollout.run_folder.run_text import metrics_by_step, read_metrics
from ...rollout.run_folder.run_writer import write_anew
from .facts import RolloutFacts, RunFacts, StepFacts, observe
from .recorded_facts import RecordedFacts
from .rules import RULES, Finding, Rule, answer_in_prompt, fidelity

logger = logging.getLogger(__name__)

ACTIONS = ("warn", "stop", "off")
FILE = "guards.jsonl"
STOPS: tuple[Rule, ...] = (fidelity,)
"""Rules that end the run unless a setting says otherwise; the others warn."""


@dataclass(frozen=True)
class Warned:
    """A finding of a rule at a step."""

    guard: str
    step: int
    action: str
    problem: str
    example: str | None

    def text(self, folder: str | Path) -> str:
        """The finding in a line or two, with how to look at the example."""
        look = f"\n  agentcore-rl show {folder} --rollout {escape(self.example)}" if self.example else ""
        return f"guard {self.guard}: {escape(self.problem)}.{look}"  # the policy makes up the names of tools


class Guards:
    """The rules of one run, and what they have said."""

    def __init__(self, actions: Mapping[str, str] | None = None, files: Sequence[str] = ()) -> None:
        """`actions` changes what rules do: `warn`, `stop` or `off`. `files` are Python files with more rules."""
        self.rules = {rule.__name__: rule for rule in (*RULES, *(rule for file in files for rule in load_rules(file)))}
        self.actions = dict.fromkeys(self.rules, "warn") | {rule.__name__: "stop" for rule in STOPS}
        for name, action in (actions or {}).items():
            ours = name.replace("-", "_")
            if ours not in self.rules:
                raise ConfigError(f"no guard is named {name!r}", hint=f"one of: {', '.join(self.rules)}")
            if action not in ACTIONS:
                raise ConfigError(f"unknown action {action!r} for guard {name}", hint=f"one of: {', '.join(ACTIONS)}")
            self.actions[ours] = action
        self.facts = RunFacts()
        self._said: set[str] = set()

    def observe(self, groups: Iterable[Group], key: Callable[[Rollout], str]) -> list[RolloutFacts]:
        """The facts of a step's rollouts; `key` finds each in the run's folder. What no rule reads is left out."""
        return observe(groups, key, search_prompts=self.actions[answer_in_prompt.__name__] != "off")

    def resume(self, folder: Path, step: int | None) -> None:
        """Forget what an earlier run in this folder said, or with `step` only what it said after that step.

        What ended the run is forgotten too: it no longer does, and is said again if it is still so.
        """
        path = folder / FILE
        said = [one for one in read_findings(path) if step is not None and one["step"] <= step]
        said = [one for one in said if one.get("action") != "stop"]
        self._said = {one["guard"] for one in said}
        if path.exists():
            write_anew(path, "".join(json.dumps(one) + "\n" for one in said))
        if step is not None:
            means = metrics_by_step(folder)
            known = [mean for at in sorted(means) if at <= step and (mean := means[at].get("reward")) is not None]
            self.facts.add_rewards(next(iter(known), None), RecordedFacts(folder).rewards(step))

    def judge(self, step: StepFacts) -> list[Warned]:
        """Add a finished step, and return its new findings."""
        self.facts.add(step)
        found = []
        for name, rule in self.rules.items():
            if self.actions[name] == "off" or name in self._said:
                continue
            finding = self._apply(name, rule)
            if finding is not None:
                self._said.add(name)
                found.append(Warned(name, step.number, self.actions[name], finding.problem, finding.example))
        return found

    def _apply(self, name: str, rule: Rule) -> Finding | None:
        try:
            found = rule(self.facts)
            if found is not None and not _is_text(found):
                raise TypeError(f"it returned {found!r:.100}, not a Finding of texts or None")
            return found
        except (Exception, SystemExit) as error:  # a user's rule may raise anything
            self._said.add(name)
            logger.warning("guard %s failed and is left out: %s: %s", name, type(error).__name__, error)
            return None


def _is_text(found: Any) -> bool:
    """Whether this is a finding that can be written down."""
    known = isinstance(found, Finding) and isinstance(found.problem, str)
    return known and isinstance(found.example, (str, type(None)))


def write_findings(folder: Path, found: Sequence[Warned]) -> None:
    """Append findings to the run's folder."""
    if found:
        with (folder / FILE).open("a") as file:
            file.write("".join(json.dumps(vars(one)) + "\n" for one in found))


def read_findings(path: Path) -> list[dict[str, Any]]:
    """The findings in a file, without a last line that a kill cut off; empty without a file."""
    found = read_metrics(path)
    return [one for one in found if isinstance(one.get("step"), int) and isinstance(one.get("guard"), str)]


def report(found: Sequence[Warned], folder: Path, say: Callable[[str], None]) -> None:
    """Write findings to the run's folder, and say them."""
    write_findings(folder, found)
    for one in found:
        say(one.text(folder))


def stop_run(found: Sequence[Warned], folder: Path) -> None:
    """End the run if a finding asks for it."""
    ending = [one for one in found if one.action == "stop"]
    if ending:
        off = " ".join(f"--guard {one.guard}=warn" for one in ending)
        raise RolloutsStopped("\n".join(one.text(folder) for one in ending), hint=f"{off} continues the run")


def load_rules(path: str) -> list[Rule]:
    """The rules of a Python file: its public functions of one argument, in order."""
    spec = importlib.util.spec_from_file_location(f"guards_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"{path} is not a Python file with guards", hint="name a file that ends in .py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path} can't be loaded: {type(error).__name__}: {error}") from error
    own = [
        one
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == module.__name__ and not name.startswith("_")
    ]
    rules: list[Rule] = [one for one in own if len(inspect.signature(one).parameters) == 1]
    if not rules:
        raise ConfigError(f"{path} has no guards", hint="a guard is a function of one argument, a RunFacts")
    return rules
