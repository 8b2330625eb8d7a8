"""`MathEquivalence`: is it the same mathematics? Needs `math-verify` (extra `rewards`).

Each answer is graded in a separate process, which costs about half a second. On a thread, `9**9**9**9`, `99999999!`
and `\\sum_{n=1}^{10^8}` each keep math-verify busy for more than 25 s, some of them inside one big-integer operation
that holds the interpreter lock; its own timeouts are signals, which work on the main thread only.
"""

from __future__ import annotations

import os
import re
import sys
from decimal import Decimal
from typing import Any

from ..agent.reward import RewardFunction
from ._process import passes

MAX_CHARS = 10_000
"""Of longer responses only the end is read, where the answer is."""
MEMORY_MB = 2048
_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[|\\begin")


class MathEquivalence(RewardFunction):
    """1.0 if the response's final expression equals the ground truth under math-verify, else 0.0.

    `ground_truth` is a number or a text, LaTeX with or without delimiters; one that math-verify can't read raises
    `ConfigError`. An answer that takes longer than `timeout_seconds` to grade, or too much memory, earns 0.0.

    >>> reward_fn = MathEquivalence()
    >>> reward_fn(response_text="It is $(x+1)^2$.", ground_truth="x^2 + 2x + 1")
    1.0
    """

    def __init__(self, *, timeout_seconds: float = 5.0) -> None:
        self.timeout_seconds = timeout_seconds

    def __call__(self, *, response_text: str, ground_truth: str | int | float, **kwargs: Any) -> float:
        job = {
            "task": "math_equal",
            "answer": response_text[-MAX_CHARS:],
            "ground_truth": _as_latex(ground_truth),
            "sys_path": [os.path.abspath(entry) for entry in sys.path],
        }
        return float(passes(job, timeout_seconds=self.timeout_seconds, memory_mb=MEMORY_MB))


def _as_latex(ground_truth: str | int | float) -> str:
    """With delimiters, or math-verify reads only numbers; floats without an exponent, or it reads `e` as Euler's."""
    if isinstance(ground_truth, float):
        ground_truth = format(Decimal(str(ground_truth)), "f")
    text = str(ground_truth)
    return text if _DELIMITED.search(text) else f"${text}$"
