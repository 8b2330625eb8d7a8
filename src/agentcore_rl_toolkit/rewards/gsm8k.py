"""`GSM8KReward`: does the response end in the right number? It doesn't read expressions; `MathEquivalence` does."""

from __future__ import annotations

import numbers
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from ..agent.reward import RewardFunction
from ..errors import ConfigError

# A sign counts only where a number can begin: "10-3" ends in 3, not in -3. Longer numbers are not answers.
_NUMBER = re.compile(
    r"""(?<![^\W_]) (?<![^\W_]_) (?<!\d\.)
        (?P<sign>(?<![)\]])[-+])? (?:[$€£][ ]?)? (?P<sign2>(?<=[$€£])[-+])?
        (?: (?P<whole>\d{1,300})[ ]+(?=\d+/\d) )?
        (?P<number>(?:\d{1,3}(?:,\d{3}){1,99}(?!\d)|\d{1,300})(?:\.\d{1,300})?|(?<!\.)\.\d{1,300})(?!\.?\d)
        (?:[ ]?/[ ]?(?P<denominator>\d{1,300})(?!\.?\d))?""",
    re.VERBOSE,
)
# "#### 2. Next step" is a heading, not an answer.
_HASHES = re.compile(r"####[ \t*]*(?P<tail>[^\n]*)")
_HEADING = re.compile(r"\d+\s*[.):]\s*[^\W\d]")
_BOXED = re.compile(r"\\boxed\s*\{")
_ANSWER = re.compile(r"\banswer[\s*_]*(?:is|:|=)[\s*_:≈~(\[\\]*", re.IGNORECASE)
# "the answer is 3 + 4 = 7": what follows the words is the working, not the answer.
_WORKING = re.compile(r"[ \t]*(?:[-+*/×÷=^]|\\times|\\div|\\cdot)[ \t]*[$\d(]")


class GSM8KReward(RewardFunction):
    """1.0 if the response's final number equals the ground truth, else 0.0.

    The final number is the last `#### x`, else the last `\\boxed{x}`, else the last "answer is x" or "answer: x",
    else the last number in the text. Numbers are compared as exact fractions, after thousands commas, currency and
    percent signs are dropped: `$1,234.50` equals `1234.5`, `1/2` equals `0.5`, `50%` equals `50`.

    `ground_truth` is a number, a text such as `"42"`, or a whole GSM8K solution that ends in `#### 42`.

    >>> reward_fn = GSM8KReward()
    >>> reward_fn(response_text="6 boxes of 7 make 42. The answer is $42.00.", ground_truth="6 * 7 = 42\\n#### 42")
    1.0
    >>> reward_fn(response_text="I do not know.", ground_truth=42)
    0.0
    """

    def __call__(self, *, response_text: str, ground_truth: Any, **kwargs: Any) -> float:
        expected = _expected(ground_truth)
        return float(final_number(response_text) == expected)


def final_number(text: str) -> Fraction | None:
    """The number that a worked answer ends in, or None.

    >>> final_number("#### 1,234.50")
    Fraction(2469, 2)
    """
    text = text.replace("\u2212", "-").replace("\u2044", "/")
    for find in (_after_hashes, _in_box, _after_answer_is):
        if (number := find(text)) is not None:
            return number
    return _value([None, *_NUMBER.finditer(text)][-1])


def _after_hashes(text: str) -> Fraction | None:
    tails = [m["tail"] for m in _HASHES.finditer(text) if not _HEADING.match(m["tail"])]
    return next((n for n in map(_leading, reversed(tails)) if n is not None), None)


def _in_box(text: str) -> Fraction | None:
    """The number in the last `\\boxed{...}`: after its last `=`, without LaTeX's decoration."""
    start = max((m.end() for m in _BOXED.finditer(text)), default=None)
    if start is None:
        return None
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            break
    inner = text[start:end] if depth == 0 else ""
    inner = re.sub(r"(\d)\s*(\\[dt]?frac)", r"\1 \2", inner)  # a mixed number
    inner = re.sub(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2", inner)
    inner = re.sub(r"\{,\}|\\[,!;: ]", lambda m: "," if m[0] == "{,}" else "", inner)
    inner = re.sub(r"\\([$%])", r"\1", inner)
    return _value(_NUMBER.search(inner.rpartition("=")[2]))


def _after_answer_is(text: str) -> Fraction | None:
    values = [_leading(text, m.end()) for m in _ANSWER.finditer(text)]
    return next((n for n in reversed(values) if n is not None), None)


def _leading(text: str, start: int = 0) -> Fraction | None:
    """The number at `start`, unless it begins a calculation."""
    match = _NUMBER.match(text, start)
    return None if match and _WORKING.match(text, match.end()) else _value(match)


def _value(match: re.Match[str] | None) -> Fraction | None:
    if match is None:
        return None
    denominator = int(match["denominator"] or 1)
    if denominator == 0:
        return None
    value = int(match["whole"] or 0) + Fraction(match["number"].replace(",", "")) / denominator
    return -value if "-" in (match["sign"], match["sign2"]) else value


def _expected(ground_truth: Any) -> Fraction:
    hint = "pass a number, a text such as '42', or a GSM8K solution that ends in '#### 42'"
    if isinstance(ground_truth, str):
        number = final_number(ground_truth)
        if number is None:
            raise ConfigError(f"ground_truth has no number: {ground_truth[-60:]!r}", hint=hint)
        return number
    if not isinstance(ground_truth, (numbers.Real, Decimal)):
        raise ConfigError(f"ground_truth is a {type(ground_truth).__name__}, not a number", hint=hint)
    try:
        # By its text: the float 0.1 means 1/10, not the nearest binary fraction.
        return Fraction(str(ground_truth))
    except ValueError:
        raise ConfigError(f"ground_truth is {ground_truth}, not a finite number", hint=hint) from None
