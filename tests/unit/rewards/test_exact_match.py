"""`ExactMatch`: character by character, or as SQuAD compares."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rewards import ExactMatch


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
    from agentcore_rl_toolkit.rewards._tokens import normalized_tokens

    once = normalized_tokens(text)
    assert normalized_tokens(" ".join(once)) == once
