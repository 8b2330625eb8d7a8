"""Which stored rollouts a policy is fine-tuned on: the best of each data row. Reads run folders, and writes nothing.

Rollouts are compared by the index alone; only those that are chosen are read. Rollouts of held-out rows are left out,
unless their file is named itself.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from ...rollout import Rollout
from ...rollout.run_folder import Run, open_run
from ...studio.run_queries import row_of

_PHASES = ("train", "rollout")
_CHECKED = 64  # demonstrations whose text is compared with their tokens


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A rollout to imitate, and where it is."""

    source: str
    key: str
    row: str
    """The identity of its data row."""
    rollout: Rollout

    @property
    def trained(self) -> int:
        """The tokens to imitate."""
        return sum(row.trained for row in self.rollout.rows)

    def to_dict(self) -> dict[str, Any]:
        """Where it is, and what it is worth."""
        known = {"source": self.source, "key": self.key, "row": self.row, "reward": self.rollout.reward}
        return known | {"rows": len(self.rollout.rows), "trained": self.trained}


@dataclass(frozen=True)
class ChosenRollouts:
    """What was chosen, and of how many."""

    demonstrations: tuple[Demonstration, ...]
    rollouts: int
    """Completed rollouts with a reward and with tokens to train on."""
    rows: int
    """Data rows that they are of."""
    min_reward: float


@dataclass(frozen=True)
class _Candidate:
    run: Run
    position: int
    key: str
    row: str
    reward: float


def choose_demonstrations(
    sources: Sequence[str],
    *,
    best: int = 1,
    min_reward: float | None = None,
    max_rollout_tokens: int | None = None,
    seed: int = 0,
) -> ChosenRollouts:
    """The `best` rollouts of each data row that have at least `min_reward`, by default the mean of all.

    Among equal rewards the seed decides. Rollouts that sampled the same tokens count as one.
    """
    found = [one for source in sources for one in _candidates(source)]
    if not found:
        hint = "name the output folder of `agentcore-rl train`, or a file of rollouts"
        raise ConfigError(f"{', '.join(sources)}: no completed rollout has a reward and tokens to train on", hint=hint)
    bound = statistics.fmean(one.reward for one in found) if min_reward is None else min_reward
    by_row = defaultdict(list)
    for one in random.Random(seed).sample(found, len(found)):
        if one.reward >= bound - 1e-9 * abs(bound):  # a mean of equal rewards may be rounded up
            by_row[one.row].append(one)
    chosen = [one for _, row in sorted(by_row.items()) for one in _best_of_row(row, best, max_rollout_tokens)]
    if not chosen:
        raise ConfigError(
            f"none of {len(found)} rollouts has a reward of at least {bound:.4g} and fits",
            hint=f"the best reward is {max(one.reward for one in found):.4g}; lower min_reward, or raise "
            "max_rollout_tokens",
        )
    return ChosenRollouts(tuple(chosen), len(found), len({one.row for one in found}), bound)


def check_tokens(demonstrations: Sequence[Demonstration], tokenizer: Any, vocabulary: int, model: str) -> None:
    """Refuse demonstrations of another tokenizer: replies that don't read as the text that was recorded with them."""
    hint = "start from a model with the tokenizer of the one that sampled the rollouts"
    most = max(max(row.token_ids) for one in demonstrations for row in one.rollout.rows)
    if most >= vocabulary:
        raise ConfigError(f"{model} has {vocabulary} tokens, and the rollouts have token {most}", hint=hint)
    replies = [reply for one in demonstrations[:_CHECKED] for reply in _replies(one.rollout)]
    wrong = sum(said not in tokenizer.decode(ids) for said, ids in replies)
    if 2 * wrong > len(replies):
        raise ConfigError(
            f"{wrong} of {len(replies)} recorded replies decode differently with the tokenizer of {model}", hint=hint
        )


def _candidates(source: str) -> list[_Candidate]:
    run = open_run(source)
    found = []
    for position in run.select(phase=_PHASES, status="completed").tolist():
        element = run.table[position]
        if element["reward"] == element["reward"] and element["trained"]:  # NaN: no reward
            row = row_of(run.text("input_id", position) or "")
            key = f"{element['writer']}.{element['n']}"
            found.append(_Candidate(run, position, key, row, float(element["reward"])))
    return found


def _best_of_row(candidates: list[_Candidate], best: int, most: int | None) -> list[Demonstration]:
    chosen: list[Demonstration] = []
    seen = set()
    for one in sorted(candidates, key=lambda one: -one.reward):
        if len(chosen) == best:
            break
        if most is not None and one.run.table["tokens"][one.position] > most:
            continue
        rollout = one.run.rollout(one.position)
        tokens = tuple(row.token_ids.tobytes() for row in rollout.rows)
        if tokens in seen or any(row.images for row in rollout.rows):
            continue
        seen.add(tokens)
        chosen.append(Demonstration(str(one.run.path), one.key, one.row, rollout))
    return chosen


def _replies(rollout: Rollout) -> list[tuple[str, list[int]]]:
    """What the model said in its trained turns, each as text and as tokens: a reply's text, or the tool it called."""
    turns = {turn.turn: turn.reply for turn in rollout.transcript.turns}
    found = []
    for row in rollout.rows:
        for span in row.spans:
            reply = turns.get(span.turn, {})
            calls = reply.get("tool_calls") or ()
            said = reply.get("content") or (calls[0].get("name") if calls else None)
            if span.trained and isinstance(said, str) and said.strip():
                found.append((said.strip()[:200], row.token_ids[span.start : span.end].tolist()))
    return found
