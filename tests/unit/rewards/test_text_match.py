"""`ExactMatch` and `TokenF1`: character by character, or as SQuAD compares and counts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rewards import ExactMatch, TokenF1
from agentcore_rl_toolkit.rewards.text_match import normalized_tokens


@pytest.mark.parametrize(
    ("response", "truth", "plain", "normalized"),
    [
        ("Paris", "Paris", 1.0, 1.0),
        ("Paris", ["London", "Paris"], 1.0, 1.0),
        ("Paris", ("London", "Rome"), 0.0, 0.0),
        ("PARIS", "Paris", 0.0, 1.0),
        ("Paris.", "Paris", 0.0, 1.0),
        ("«Paris»…", "Paris", 0.0, 1.0),
        ("$5", "5", 0.0, 1.0),
        ("the Paris", "Paris", 0.0, 1.0),
        ("A cat and an owl", "cat and owl", 0.0, 1.0),
        ("theatre", "atre", 0.0, 0.0),
        ("  New \n York ", "new york", 0.0, 1.0),
        ("ｆｉｎｅ", "fine", 0.0, 1.0),
        ("caf\u0065\u0301", "café", 0.0, 1.0),
        ("New York", "York New", 0.0, 0.0),
        ("It is Paris", "Paris", 0.0, 0.0),
        ("", "", 1.0, 1.0),
        ("the", "", 0.0, 1.0),
    ],
)
def test_match(response: str, truth: str | list[str], plain: float, normalized: float) -> None:
    assert ExactMatch()(response_text=response, ground_truth=truth, question="ignored") == plain
    assert ExactMatch(normalize=True)(response_text=response, ground_truth=truth, question="ignored") == normalized


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("ground_truth", [[], None, 42, ["Paris", 42], {"Paris": 1}], ids=repr)
def test_a_ground_truth_that_is_no_text_is_an_error(ground_truth: Any, normalize: bool) -> None:
    with pytest.raises(ConfigError, match=r"neither a string nor a list of strings\nhint:"):
        ExactMatch(normalize=normalize)(response_text="Paris", ground_truth=ground_truth)


@given(st.text())
@example("C:\u0327")  # an accent that meets its letter once the colon is gone
def test_normalizing_twice_changes_nothing(text: str) -> None:
    once = normalized_tokens(text)
    assert normalized_tokens(" ".join(once)) == once


# --- F1 --------------------------------------------------------------------------------------------------------------

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
def test_f1(response: str, truth: str | list[str], score: float) -> None:
    assert f1(response_text=response, ground_truth=truth, question="ignored") == pytest.approx(score)


@given(texts, texts)
def test_f1_is_symmetric_and_within_bounds(one: str, other: str) -> None:
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


def test_f1_with_a_ground_truth_that_is_no_text_is_an_error() -> None:
    with pytest.raises(ConfigError, match="neither a string nor a list of strings"):
        f1(response_text="42", ground_truth=42)  # type: ignore[arg-type]
