"""`RelativeJudge`: a model ranks the rollouts of a group, for tasks where better and worse are easier than a score."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from ...agent.reward import RewardFunction
from ...errors import ConfigError, JudgeFault
from .judge_model import JudgeModel, JudgeUsage
from .llm_judge import RULES, enclose, verdict_schema

_SCALE = 100


class RelativeJudge(RewardFunction):
    """Each rollout's rank in its group: 1.0 for the best, 0.0 for the worst, equal for ties.

    It is called once per group, with `responses` (one text for each rollout) and the row's `prompt`, so it is given to
    the trainer and not to the agent: `train --reward judge.py:judge`. The responses are shown in an order that depends
    only on them, because judges prefer what comes first. Settings are those of `LLMJudge`.

    >>> judge = RelativeJudge("openai:gpt-5-mini", rubric="Prefer the shorter plan that works.")
    >>> judge(responses=["Restart it.", "Wait a day, then restart it."], prompt="It hangs.")  # doctest: +SKIP
    [1.0, 0.0]
    >>> judge.usage.calls
    0
    """

    def __init__(self, model: str | JudgeModel, *, rubric: str, **settings: Any) -> None:
        if not rubric.strip():
            raise ConfigError("the rubric is empty", hint="say what makes one response better than another")
        self.model = model if isinstance(model, JudgeModel) else JudgeModel(name=model, **settings)
        self.rubric = rubric

    @property
    def usage(self) -> JudgeUsage:
        """What the judge's calls have cost."""
        return self.model.usage

    def __call__(self, *, responses: Sequence[str], prompt: Any = None, **kwargs: Any) -> list[float]:
        if len(responses) < 2:
            raise JudgeFault(f"a ranking needs at least 2 responses, not {len(responses)}")
        order = sorted(range(len(responses)), key=lambda place: responses[place])
        digest = hashlib.sha256("\0".join(sorted(responses)).encode(errors="replace")).hexdigest()
        random.Random(digest).shuffle(order)
        known = {} if prompt is None else {"task": prompt}
        known |= {f"response {number}": responses[place] for number, place in enumerate(order, 1)}
        scores = self._scores(enclose(known), len(order))
        by_place = {place: scores[number] for number, place in enumerate(order, 1)}
        return ranks([by_place[place] for place in range(len(responses))])

    def _scores(self, text: str, count: int) -> dict[int, float]:
        system = (
            f"{RULES}{self.rubric}\n\nCompare the {count} responses with each other. Give each of them, by its number, "
            f"a score from 0 (worst) to {_SCALE} (best); equal scores mean that neither is better."
        )
        item = {"response": {"type": "integer"}, "score": {"type": "number"}}
        scored = {"type": "object", "properties": item, "required": list(item), "additionalProperties": False}
        schema = verdict_schema({"scores": {"type": "array", "items": scored}})
        answer = self.model.ask(system, text, schema)
        found = _read_scores(answer.get("scores"))
        if found is None or set(found) != set(range(1, count + 1)):
            self.model.forget(system, text, schema)
            raise JudgeFault(f"the judge {self.model.name} gave {answer!r:.200}, not one score for each of {count}")
        return found


def ranks(scores: Sequence[float]) -> list[float]:
    """The share of the others that each score beats, half for ties.

    >>> ranks([30, 90, 30])
    [0.25, 1.0, 0.25]
    """
    return [
        sum((score > other) + 0.5 * (score == other) for place, other in enumerate(scores) if place != own)
        / (len(scores) - 1)
        for own, score in enumerate(scores)
    ]


def _read_scores(given: Any) -> dict[int, float] | None:
    """Scores by number; None if one is missing, given twice, or not a number."""
    found: dict[int, float] = {}
    for one in given if isinstance(given, list) else ():
        number, score = (one.get("response"), one.get("score")) if isinstance(one, dict) else (None, None)
        if not isinstance(number, int) or number in found or isinstance(score, bool):
            return None
        if not isinstance(score, (int, float)) or not 0 <= score <= _SCALE:
            return None
        found[number] = float(score)
    return found
