"""SQuAD's normalisation of short answers, shared by `ExactMatch` and `TokenF1`. Pure."""

from __future__ import annotations

import string
import unicodedata
from typing import Any

from ..errors import ConfigError

_ARTICLES = {"a", "an", "the"}


def normalized_tokens(text: str) -> list[str]:
    """The words of `text` in lower case and NFKC, without punctuation and articles.

    >>> normalized_tokens("The  Eiffel Tower,\\nin PARIS!")
    ['eiffel', 'tower', 'in', 'paris']
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).lower())
    kept = "".join(char for char in text if not _is_punctuation(char))
    # What stood apart from its accent by punctuation stands beside it now.
    return [token for token in unicodedata.normalize("NFKC", kept).split() if token not in _ARTICLES]


def alternatives(ground_truth: Any) -> list[str]:
    """The acceptable answers, from one string or a list of them.

    >>> alternatives("Paris")
    ['Paris']
    """
    answers = [ground_truth] if isinstance(ground_truth, str) else ground_truth
    if not isinstance(answers, (list, tuple)) or not answers or not all(isinstance(a, str) for a in answers):
        raise ConfigError(
            f"ground_truth is {ground_truth!r:.60}, neither a string nor a list of strings",
            hint="pass the answer as a string, or a non-empty list of acceptable strings",
        )
    return list(answers)


def _is_punctuation(char: str) -> bool:
    return char in string.punctuation or unicodedata.category(char).startswith("P")
