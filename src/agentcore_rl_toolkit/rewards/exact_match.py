"""`ExactMatch`: is the response one of the accepted answers? Pure.

It compares whole texts and looks for nothing inside them.
"""

from __future__ import annotations

from typing import Any

from ..agent.reward import RewardFunction
from ._tokens import alternatives, normalized_tokens


class ExactMatch(RewardFunction):
    """1.0 if the response equals the ground truth, or any of a list of them, else 0.0.

    With `normalize=True` both are compared as SQuAD does: NFKC, lower case, without punctuation, articles and extra
    whitespace. Without it, character by character.

    >>> ExactMatch()(response_text="paris", ground_truth="Paris")
    0.0
    >>> ExactMatch(normalize=True)(response_text="The Paris.", ground_truth=["Lutetia", "Paris"])
    1.0
    """

    def __init__(self, *, normalize: bool = False) -> None:
        self.normalize = normalize

    def __call__(self, *, response_text: str, ground_truth: str | list[str], **kwargs: Any) -> float:
        answers = alternatives(ground_truth)
        if not self.normalize:
            return float(response_text in answers)
        return float(normalized_tokens(response_text) in [normalized_tokens(answer) for answer in answers])
