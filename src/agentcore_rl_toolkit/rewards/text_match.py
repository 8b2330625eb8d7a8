"""`ExactMatch` and `TokenF1`: compare a short answer with the accepted ones, whole or word by word."""

from __future__ import annotations

import string
import unicodedata
from collections import Counter
from typing import Any

from ..agent.reward import RewardFunction
from ..errors import ConfigError

_ARTICLES = {"a", "an", "the"}


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
        answers = _accepted_answers(ground_truth)
        if not self.normalize:
            return float(response_text in answers)
        return float(normalized_tokens(response_text) in [normalized_tokens(answer) for answer in answers])


class TokenF1(RewardFunction):
    """SQuAD's F1 over normalized words: the best over the ground truths, if there are several.

    Two texts without a word agree (1.0); one without and one with words don't (0.0).

    >>> TokenF1()(response_text="in Paris, France", ground_truth="Paris")
    0.5
    """

    def __call__(self, *, response_text: str, ground_truth: str | list[str], **kwargs: Any) -> float:
        response = normalized_tokens(response_text)
        return max(_f1(response, normalized_tokens(answer)) for answer in _accepted_answers(ground_truth))


def normalized_tokens(text: str) -> list[str]:
    """The words of `text` in lower case and NFKC, without punctuation and articles.

    >>> normalized_tokens("The  Eiffel Tower,\\nin PARIS!")
    ['eiffel', 'tower', 'in', 'paris']
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
    kept = "".join(c for c in text if c not in string.punctuation and not unicodedata.category(c).startswith("P"))
    # Again, because punctuation may have separated a letter from its accent.
    return [token for token in unicodedata.normalize("NFKC", kept).split() if token not in _ARTICLES]


def _accepted_answers(ground_truth: Any) -> list[str]:
    answers = [ground_truth] if isinstance(ground_truth, str) else ground_truth
    if not isinstance(answers, (list, tuple)) or not answers or not all(isinstance(a, str) for a in answers):
        raise ConfigError(
            f"ground_truth is {ground_truth!r:.60}, neither a string nor a list of strings",
            hint="pass the answer as a string, or a non-empty list of acceptable strings",
        )
    return list(answers)


def _f1(response: list[str], answer: list[str]) -> float:
    if not response or not answer:
        return float(response == answer)
    shared = (Counter(response) & Counter(answer)).total()
    return 2 * shared / (len(response) + len(answer))
