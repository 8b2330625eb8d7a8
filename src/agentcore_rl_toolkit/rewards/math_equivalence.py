"""`MathEquivalence`: is it the same mathematics? Needs `math-verify` (extra `rewards`).

Each answer is graded in a process of its own. That was measured, not assumed: `9**9**9**9`, `99999999!`,
`10^{10^{10}}`, `\\sum_{n=1}^{10^8}` and `(x+y+z+w)^{200}` each keep math-verify busy for more than 25 s, several inside
one big-integer operation that holds the interpreter lock, which would stop every other agent in the process. Its own
timeouts are signals, which work on the main thread only, and an agent runs on a worker thread. The price is about
half a second per answer, nearly all of it the import of sympy.
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
"""Longer responses are judged by their end, where the answer is."""
MEMORY_MB = 2048
_DELIMITED = re.compile(r"\$|\\boxed|\\\(|\\\[|\\begin")


class MathEquivalence(RewardFunction):
    """1.0 if the response's final expression equals the ground truth under math-verify, else 0.0.

    `ground_truth` is a number or a text, LaTeX with or without delimiters. An answer that takes longer than
    `timeout_seconds` to judge, or too much memory, is worth 0.0; a ground truth that cannot be read raises
    `ConfigError`.

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
    """With delimiters, or math-verify reads only numbers; and a float written out, or its `e` is taken for Euler's."""
    if isinstance(ground_truth, float):
        ground_truth = format(Decimal(str(ground_truth)), "f")
    text = str(ground_truth)
    return text if _DELIMITED.search(text) else f"${text}$"
