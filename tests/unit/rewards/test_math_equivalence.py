"""`MathEquivalence`: same mathematics, from any thread, whatever the answer asks the machine to compute."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rewards import MathEquivalence
from agentcore_rl_toolkit.rewards.math_equivalence import MAX_CHARS

reward_fn = MathEquivalence()

GRADED = [
    (r"So it is $\frac{1}{2}$.", "0.5", 1.0),
    (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
    (r"\boxed{(x+1)^2}", "x^2 + 2x + 1", 1.0),
    (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt 2}", 1.0),
    ("The answer is 1,000.", 1000, 1.0),
    (r"\boxed{0.0000001}", 1e-7, 1.0),
    ("z" * MAX_CHARS + " the answer is 7", 7, 1.0),
    (r"$\frac{1}{3}$", "0.5", 0.0),
    ("", "0.5", 0.0),
    ("{" * 20_000 + "\\frac" * 2_000 + "\ud800", "0.5", 0.0),
]


def test_answers_are_graded_from_worker_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        scores = pool.map(lambda case: reward_fn(response_text=case[0], ground_truth=case[1], q="ignored"), GRADED)
        assert list(scores) == [score for _, _, score in GRADED]


HOSTILE = ["9**9**9**9", r"\boxed{10^{10^{10}}}", r"\boxed{99999999!}", r"\boxed{(x+y+z+w)^{200}}"]


def test_an_answer_that_never_ends_is_worth_nothing() -> None:
    impatient = MathEquivalence(timeout_seconds=0.5)
    with ThreadPoolExecutor(4) as pool:
        scores = pool.map(lambda answer: impatient(response_text=answer, ground_truth="5"), HOSTILE)
        assert list(scores) == [0.0] * len(HOSTILE)


def test_only_the_end_of_a_long_response_is_read() -> None:
    assert reward_fn(response_text=r"\boxed{7}" + "z" * MAX_CHARS, ground_truth=7) == 0.0


def test_a_ground_truth_that_is_no_mathematics_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"math-verify can't read the ground_truth ''\nhint: pass a number"):
        reward_fn(response_text="7", ground_truth="")


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('No module named sympy')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"No module named sympy\nhint: pip install 'agentcore-rl-toolkit\[rewards\]'"
    ):
        reward_fn(response_text="7", ground_truth="7")
