"""`TokenF1`: how many words the response and the ground truth share. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..agent.reward import RewardFunction
from ._tokens import alternatives, normalized_tokens


class TokenF1(RewardFunction):
    """SQuAD's F1 over normalised words: the best over the ground truths, if there are several.

    Two texts without a word in them agree (1.0); one without and one with do not (0.0).

    >>> TokenF1()(response_text="in Paris, France", ground_truth="Paris")
    0.5
    """

    def __call__(self, *, response_text: str, ground_truth: str | list[str], **kwargs: Any) -> float:
        response = normalized_tokens(response_text)
        return max(_f1(response, normalized_tokens(answer)) for answer in alternatives(ground_truth))


def _f1(ours: list[str], theirs: list[str]) -> float:
    if not ours or not theirs:
        return float(ours == theirs)
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs))
