"""`TokenF1`: the shared words, counted as SQuAD counts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rewards import TokenF1

f1 = TokenF1()
texts = st.lists(st.sampled_from(["a", "the", "cat", "Cat", "dog.", "sat", "é", "", "?"])).map(" ".join)


@pytest.mark.parametrize(
    ("response", "truth", "score"),
    [
        ("Paris", "paris!", 1.0),
        ("Paris", "London", 0.0),
        ("in Paris, France", "Paris", 0.5),
        ("cat cat dog", "cat", 0.5),
        ("cat", "cat cat dog", 0.5),
        ("cat cat dog", "cat cat", 0.8),
        ("the cat", "a cat", 1.0),
        ("Paris", ["London", "Paris France"], 2 / 3),
        ("Paris", ["Paris", "London"], 1.0),
        ("", "", 1.0),
        ("the", "?", 1.0),
        ("", "Paris", 0.0),
        ("Paris", "", 0.0),
    ],
)
def test_score(response: str, truth: str | list[str], score: float) -> None:
    assert f1(response_text=response, ground_truth=truth, question="ignored") == pytest.approx(score)


@given(texts, texts)
def test_it_is_symmetric_and_within_bounds(one: str, other: str) -> None:
    score = f1(response_text=one, ground_truth=other)
    assert score == f1(response_text=other, ground_truth=one)
    assert 0.0 <= score <= 1.0


@given(st.text())
def test_every_text_agrees_with_itself(text: str) -> None:
    assert f1(response_text=text, ground_truth=text) == 1.0


@given(texts, st.lists(texts, min_size=1))
def test_several_ground_truths_give_the_best(response: str, truths: list[str]) -> None:
    assert f1(response_text=response, ground_truth=truths) == max(
        f1(response_text=response, ground_truth=truth) for truth in truths
    )


def test_a_ground_truth_that_is_no_text_is_an_error() -> None:
    with pytest.raises(ConfigError, match="neither a string nor a list of strings"):
        f1(response_text="42", ground_truth=42)  # type: ignore[arg-type]
