"""Whether a reward agrees with gold rows: for judges, which may be wrong without failing."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from ...agent.reward import normalize_rewards
from ...errors import AgentCoreRLError, ConfigError
from ...rollout.signal.rescore import Score, load_reward, wanted
from ...rows import read_rows
from .finding import Check, failed, failed_with, ok

_CHANCE = 0.5
_FIX = "sharpen the rubric, or take a stronger model"

Pair = tuple[float, float]
"""What a reward gave, and the gold reward."""


def check_judge(reward: str, gold: str) -> Check:
    """Score gold rows, and compare which of two is better.

    A row has the arguments of the reward function, `response_text` for one, and its gold `reward`; for a reward that
    ranks, `responses` and `rewards`. Pairs with equal gold rewards are left out; equal scores agree by half.
    """
    try:
        score, (rows, _) = load_reward(reward), read_rows(gold)
        scored, problems = _score_rows(score, rows)
    except AgentCoreRLError as error:
        return failed_with("judge", error)
    except Exception as error:
        return failed("judge", f"{reward} raised {type(error).__name__}: {error}")
    if problems:
        return failed("judge", f"{len(problems)} of {len(rows)} gold rows got no score; the first: {problems[0]}")
    agreed = [_agreement(pair, other) for pairs in scored for pair, other in itertools.combinations(pairs, 2)]
    known = [share for share in agreed if share is not None]
    if not known:
        return failed("judge", f"{gold} has no two rows to compare", "give rows of different gold rewards")
    share = statistics.fmean(known)
    distance = statistics.fmean(abs(given - gold) for pairs in scored for given, gold in pairs)
    text = f"agrees with gold in {share:.0%} of {len(known)} pairs, mean distance {distance:.2f}{_cost(score)}"
    return ok("judge", text) if share > _CHANCE else failed("judge", f"{text}: no better than chance", _FIX)


def _score_rows(score: Score, rows: Sequence[dict[str, Any]]) -> tuple[list[list[Pair]], list[str]]:
    """The pairs that may be compared with each other, and what went wrong."""
    groups: list[list[Pair]] = []
    alone: list[Pair] = []
    problems: list[str] = []
    for row in rows:
        try:
            pairs = list(_pairs(score, row))
        except ConfigError:
            raise
        except AgentCoreRLError as error:
            problems.append(str(error))
            continue
        if "rewards" in row:
            groups.append(pairs)
        else:
            alone += pairs
    return [*groups, alone], problems


def _pairs(score: Score, row: dict[str, Any]) -> Iterator[Pair]:
    known = {"ground_truth": row.get("answer"), **row}
    gold = row.get("rewards", row.get("reward"))
    if gold is None:
        raise ConfigError("a gold row has no reward", hint="write reward, or rewards for a row of responses")
    given = normalize_rewards(score(**wanted(score, known)))
    golds, scores = (value if isinstance(value, list) else [value] for value in (gold, given))
    for one, its_gold in zip(scores, golds, strict=True):
        if one is None:
            raise AgentCoreRLError("the reward is None")
        yield float(one), float(its_gold)


def _agreement(one: Pair, other: Pair) -> float | None:
    if one[1] == other[1]:
        return None
    if one[0] == other[0]:
        return 0.5
    return float((one[0] > other[0]) == (one[1] > other[1]))


def _cost(score: Score) -> str:
    usage = getattr(score, "usage", None)
    if usage is None:
        return ""
    tokens = f"{usage.input_tokens + usage.output_tokens:,} tokens"
    return f"; {usage.calls} calls, {usage.cached} from the cache, {tokens}, ${usage.dollars:.4f}"
