"""What guards know of a run: a few facts about each rollout of its latest steps, and the figures of each step. Pure.

Facts are small and hold no tokens, so that processes can exchange them and a run keeps them for several steps.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...client.evaluation import Summary
from ...rollout import Group, Rollout
from ...rollout.judge import NO_VARIANCE
from ...rollout.step_metrics import components_of
from ...types import Status

KEPT = 5
"""Guards see this many of the latest steps."""
_LONGEST = 20_000  # characters of a prompt that are searched for the answer
_MOST_OTHERS = 16
"""Each prompt is searched for the answers of this many other rows."""
_TRUTH = re.compile(r"(^|_)(answers?|ground_?truth|truth|solution|target|labels?|expected|gold|reference)(_|$)", re.I)
_NUMBERS = ("id", "_id", "uid", "uuid", "index", "idx", "input_id", "row_id")
_CALL_MARKS = re.compile(r"<tool_call>|<function[=_]|<\|tool_call|\[TOOL_CALLS\]|<\|python_tag\|>|<tool_use>|<invoke ")


@dataclass(frozen=True, kw_only=True)
class Leak:
    """Whether a rollout's prompt has the answer that its data row names."""

    found: bool
    before: str
    """The characters before it."""
    outside: bool
    """It is in none of the row's other fields, so the agent must have added it."""
    chance: float
    """The share of other rows' answers that are in this prompt, too."""


@dataclass(frozen=True, kw_only=True)
class RolloutFacts:
    """One rollout, as guards see it."""

    key: str
    """Finds it: `agentcore-rl show RUN --rollout KEY`."""
    row: str = ""
    """The data row, whichever step it is in."""
    group: int = 0
    completed: bool = True
    trained: bool = True
    equal_rewards: bool = False
    """It is not trained on because all rewards of its group are equal."""
    reward: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    """The parts of its reward: the numbers in the result's `components`."""
    sampled: int = 0
    """Tokens that the policy sampled; of these, `wanted` are meant for training."""
    wanted: int = 0
    kept: int = 0
    """Tokens that are trained on."""
    turns: int = 0
    edited: int = 0
    """Turns whose history has a reply that the policy never gave."""
    offered: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    unknown_calls: tuple[str, ...] = ()
    parse_failures: int = 0
    unparsed: int = 0
    """Replies with the marks of a tool call in their text, although none failed to parse."""
    truncated: bool = False
    text: str = ""
    """The hash of everything that it sampled; empty if that isn't known."""
    probability: float = 0.0
    """How probable that was."""
    leak: Leak | None = None
    """None if its row names no answer, or if the guard `answer_in_prompt` is off."""


@dataclass(frozen=True)
class StepFacts:
    """One step."""

    number: int
    """Updates of the weights after it, as in `metrics.jsonl`."""
    metrics: Mapping[str, float]
    rollouts: Sequence[RolloutFacts] = ()

    def groups(self) -> list[list[RolloutFacts]]:
        """Its rollouts by data row, without those that sampled nothing."""
        found: dict[int, list[RolloutFacts]] = {}
        for one in self.rollouts:
            if one.sampled:
                found.setdefault(one.group, []).append(one)
        return list(found.values())


@dataclass
class RunFacts:
    """What rules judge: the latest steps of a run, and facts of the whole run."""

    steps: deque[StepFacts] = field(default_factory=lambda: deque(maxlen=KEPT))
    seen: int = 0
    """Steps so far, in this process's life."""
    first: Mapping[str, float] = field(default_factory=dict)
    """The figures of the first step seen."""
    first_reward: float | None = None
    """The first mean reward of the run, from before it was resumed if it was."""
    lowest_reward: float = math.inf
    """The lowest reward of a completed rollout so far, those from before a resume included …"""
    top_reward: float = -math.inf
    """… and the highest."""
    held_out: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By the number of updates: mean reward of the held-out rows, and its standard error."""
    shared_rows: tuple[int, int] = (0, 0)
    """Held-out rows that are training rows too, and all held-out rows."""
    shared_example: str | None = None

    def add(self, step: StepFacts) -> None:
        """Add a finished step."""
        if not self.seen:
            self.first = step.metrics
        self.seen += 1
        self.steps.append(step)
        self.add_rewards(
            step.metrics.get("reward"),
            [one.reward for one in step.rollouts if one.completed and one.reward is not None],
        )

    def add_rewards(self, mean: float | None, rewards: Iterable[float]) -> None:
        """Add the mean reward of a step, and the rewards of completed rollouts."""
        if self.first_reward is None:
            self.first_reward = mean
        known = list(rewards)
        self.lowest_reward = min([self.lowest_reward, *known])
        self.top_reward = max([self.top_reward, *known])

    def add_evaluation(self, step: int, summary: Summary) -> None:
        """Add the held-out rewards after `step` updates."""
        if summary.reward is not None and summary.error is not None:
            self.held_out[step] = summary.reward, summary.error

    def find_shared_rows(self, rows: Iterable[Any], held_out: Iterable[Any]) -> set[str]:
        """Count the held-out rows that are training rows too; returns their identities."""
        trained, evaluated = ([row_identity(row) for row in one] for one in (rows, held_out))
        shared = set(trained) & set(evaluated)
        self.shared_rows = sum(one in shared for one in evaluated), len(evaluated)
        return shared

    @property
    def rollouts(self) -> list[RolloutFacts]:
        """The rollouts of the latest steps that sampled anything, the oldest first."""
        return [one for step in self.steps for one in step.rollouts if one.sampled]


def observe(
    groups: Iterable[Group], key: Callable[[Rollout], str], *, search_prompts: bool = True
) -> list[RolloutFacts]:
    """The facts of a step's rollouts; `key` finds each in the run's folder."""
    groups = list(groups)
    leaks = _find_leaks(groups) if search_prompts else [None] * len(groups)
    return [
        _observe(rollout, group, key(rollout), leak)
        for group, leak in zip(groups, leaks, strict=True)
        for rollout in (*group.rollouts, *group.others)
    ]


def _observe(rollout: Rollout, group: Group, key: str, leak: Leak | None) -> RolloutFacts:
    fidelity, turns = rollout.fidelity, rollout.transcript.turns
    text, probability = _sampled(rollout)
    marked = [bool(_CALL_MARKS.search(str(one.reply.get("content") or ""))) for one in turns]
    return RolloutFacts(
        key=key,
        row=row_identity(rollout.payload),
        group=group.index,
        completed=rollout.status is Status.COMPLETED,
        trained=rollout.trained and group.dropped is None,
        equal_rewards=rollout.trained and group.dropped == NO_VARIANCE,
        reward=rollout.reward,
        components=components_of(rollout),
        sampled=fidelity.sampled,
        wanted=fidelity.wanted,
        kept=fidelity.trained,
        turns=fidelity.turns,
        edited=_count_edited(rollout),
        offered=tuple(sorted({name for one in turns for name in one.tools})),
        calls=tuple(sorted({str(call.get("name")) for one in turns for call in one.reply.get("tool_calls") or ()})),
        unknown_calls=tuple(rollout.transcript.unknown_tools()),
        parse_failures=fidelity.parse_failures,
        unparsed=sum(
            mark and bool(one.tools) and not one.parse_failures for mark, one in zip(marked, turns, strict=True)
        ),
        truncated=rollout.truncated,
        text=text,
        probability=probability,
        leak=leak,
    )


def row_identity(payload: Any) -> str:
    """The identity of a data row: the hash of its content, apart from its number, upper case and spaces.

    >>> row_identity({"id": 1, "prompt": "What is  1+1?"}) == row_identity({"id": 7, "prompt": "what is 1+1? "})
    True
    """
    known = payload
    if isinstance(payload, Mapping):
        known = {str(name): value for name, value in payload.items() if str(name).lower() not in _NUMBERS}
    text = " ".join(json.dumps(known or payload, sort_keys=True, default=repr, ensure_ascii=False).casefold().split())
    return hashlib.sha256(text.replace(' "', '"').encode(errors="replace")).hexdigest()[:16]


def _sampled(rollout: Rollout) -> tuple[str, float]:
    """The hash and the probability of all sampled tokens, if all of them are in its rows."""
    digest, logprob, known = hashlib.sha256(), 0.0, 0
    for row in rollout.rows:
        chosen = row.loss_mask.astype(bool)
        digest.update(np.frombuffer(row.token_ids, np.uint32)[chosen].tobytes() + b"|")
        logprob += float(row.logprobs[chosen].sum())
        known += int(chosen.sum())
    if not known or known != rollout.fidelity.sampled:
        return "", 0.0
    return digest.hexdigest()[:16], float(np.exp(min(logprob, 0.0)))


def _count_edited(rollout: Rollout) -> int:
    """Turns that continue a conversation with an assistant message that the policy did not give.

    A separate conversation, such as a sub-agent's, may begin with examples.
    """
    transcript, edited = rollout.transcript, 0
    given: set[str] = set()
    asked: set[int] = set()
    for turn in transcript.turns:
        said = {place: transcript.messages[place] for place in turn.messages}
        replies = {_said(message) for message in said.values() if message.get("role") == "assistant"}
        users = {place for place, message in said.items() if message.get("role") in ("user", "tool")}
        if (turn.before is not None or users & asked) and replies - given:
            edited += 1
        given |= replies | {_said({"role": "assistant", **turn.reply})}
        asked |= users
    return edited


def _said(message: Mapping[str, Any]) -> str:
    """What an assistant message says, whatever the ids of its calls."""
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    made = [(call.get("name"), _canonical(call.get("arguments"))) for call in calls]
    return json.dumps([" ".join(str(message.get("content") or "").split()), made], default=repr)


def _canonical(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


# --- answers in prompts -----------------------------------------------------------------------------------------------


def _find_leaks(groups: Sequence[Group]) -> list[Leak | None]:
    prompts = [_prompt(group) for group in groups]
    truths = [_truth(group.payload) for group in groups]
    known = sorted({truth for truth in truths if truth})
    found: list[Leak | None] = []
    for group, prompt, truth in zip(groups, prompts, truths, strict=True):
        if truth is None or not prompt or len(known) < 2:
            found.append(None)
            continue
        at = known.index(truth)
        others = [*known[at + 1 :], *known[:at]][:_MOST_OTHERS]
        place = _place(prompt, truth)
        chance = sum(_place(prompt, other) is not None for other in others) / len(others)
        beside = "\n".join(str(value) for name, value in group.payload.items() if not _TRUTH.search(str(name)))
        outside = _place(beside[:_LONGEST], truth) is None
        before = prompt[max(0, place - 12) : place] if place is not None else ""
        found.append(Leak(found=place is not None, before=before, outside=outside, chance=chance))
    return found


def _prompt(group: Group) -> str:
    """What the model was told in a group's first rollout, without its replies and its tools' results."""
    messages = next((one.transcript.messages for one in group.rollouts if one.transcript.messages), ())
    said = [str(one.get("content") or "") for one in messages if one.get("role") not in ("assistant", "tool")]
    return "\n".join(said)[:_LONGEST]


def _truth(payload: Any) -> str | None:
    """The answer that a data row names, if it does."""
    if not isinstance(payload, Mapping):
        return None
    for name, value in payload.items():
        if _TRUTH.search(str(name)) and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            text = str(value).strip()
            return text if 0 < len(text) <= 200 else None
    return None


def _place(text: str, truth: str) -> int | None:
    """Where a text has the answer last, as a word."""
    if truth not in text:
        return None
    places = [match.start() for match in re.finditer(rf"(?<![\w.]){re.escape(truth)}(?!\w|\.\d)", text)]
    return places[-1] if places else None
