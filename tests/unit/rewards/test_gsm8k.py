"""`GSM8KReward`: where the final number is found, how it is read, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rewards import GSM8KReward
from agentcore_rl_toolkit.rewards.gsm8k import final_number

reward_fn = GSM8KReward()

PLACES = [
    ("#### 42", 42),
    ("####42", 42),
    ("#### **42**", 42),
    ("#### 7\nno, wait\n#### 42", 42),
    ("#### 42\nThat took 3 steps.", 42),
    (r"#### 42" + "\n" + r"\boxed{7}", 42),
    ("#### 1. Find the cost\n#### 2) Add it up\nIt is 42.", 42),
    ("#### Step 1\nIt is 42 in all.", 42),
    (r"\boxed{42} which took 3 steps. The answer is 5.", 42),
    (r"first \boxed{7}, then \boxed{42}", 42),
    (r"\boxed{x = 42}", 42),
    (r"\boxed{2 + 3 = 5}", 5),
    (r"\boxed{42\text{ cm}^2}", 42),
    (r"\boxed{\$1{,}234.50}", Fraction("1234.5")),
    (r"\boxed{1\,000}", 1000),
    (r"\boxed{\frac{1}{2}}", Fraction(1, 2)),
    (r"\boxed{-\dfrac{1}{2}}", Fraction(-1, 2)),
    (r"\boxed{2\frac{1}{2}}", Fraction(5, 2)),
    (r"\boxed{50\%}", 50),
    (r"it is 42, but \boxed{ 7", 7),
    (r"\boxed{unclear}. The answer is 42, after 3 steps.", 42),
    ("The answer is 42, after 3 steps.", 42),
    ("The answer is 7. No: the answer is 42. It took 3 steps.", 42),
    ("**Answer:** 42 (in 3 steps)", 42),
    ("**Answer**: **$42** in 3 steps", 42),
    ("FINAL ANSWER IS: \\(42\\), 3 steps", 42),
    ("answer = _42_ after 3", 42),
    ("The answer is 3 + 4 = 7", 7),
    ("The answer is 42\n- 3 apples less than before", 42),
    ("The answer is $ 42 after 3 steps", 42),
    ("The answer is roughly 42", 42),
    ("3 boxes, 14 each: 42", 42),
    ("I have no idea.", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "number"), PLACES)
def test_the_final_number_is_found(text: str, number: Fraction | int | None) -> None:
    assert final_number(text) == number


FORMS = [
    ("42.", 42),
    ("42.0", 42),
    ("+42", 42),
    ("-42", -42),
    ("\u221242", -42),
    ("$-42", -42),
    ("-$42", -42),
    ("$ 42", 42),
    ("€42", 42),
    ("1,234,567.5", Fraction("1234567.5")),
    ("1, 2, 3", 3),
    ("10-3", 3),
    ("(10)-3", 3),
    ("5 m2", 5),
    ("x_1 and 5", 5),
    ("5 x_1", 5),
    (".5", Fraction(1, 2)),
    ("so...42", 42),
    ("1/2", Fraction(1, 2)),
    ("1 / 2", Fraction(1, 2)),
    ("1\u20442", Fraction(1, 2)),
    ("3 1/2", Fraction(7, 2)),
    ("-3 1/2", Fraction(-7, 2)),
    ("1/0", None),
    ("1.2.3", None),
    ("9" * 5000, None),
    ("3." + "1" * 301, None),
]


@pytest.mark.parametrize(("text", "number"), FORMS)
def test_a_number_is_read_in_its_usual_forms(text: str, number: Fraction | int | None) -> None:
    assert final_number(text) == number


TRUTHS = [
    42,
    42.0,
    "42",
    "$42.00",
    "6 * 7 = <<6*7=42>>42\n#### 42",
    Decimal("42.0"),
    numpy.int64(42),
    numpy.float32(42),
]


@pytest.mark.parametrize("ground_truth", TRUTHS, ids=repr)
def test_the_ground_truth_may_be_a_number_a_text_or_a_solution(ground_truth: object) -> None:
    assert reward_fn(response_text="The answer is 42.", ground_truth=ground_truth, prompt="ignored") == 1.0
    assert reward_fn(response_text="The answer is 43.", ground_truth=ground_truth) == 0.0
    assert reward_fn(response_text="No answer.", ground_truth=ground_truth) == 0.0


def test_a_float_means_its_shortest_text_and_close_is_not_equal() -> None:
    assert reward_fn(response_text="1/10", ground_truth=0.1) == 1.0
    assert reward_fn(response_text="0.333333333333333333", ground_truth="1/3") == 0.0
    assert reward_fn(response_text="9007199254740993", ground_truth="9007199254740992") == 0.0


@pytest.mark.parametrize("ground_truth", ["", "#### unknown", None, True, float("nan"), float("inf"), ["42"]], ids=repr)
def test_a_ground_truth_without_a_number_is_an_error_even_for_an_empty_response(ground_truth: object) -> None:
    with pytest.raises(ConfigError, match=r"ground_truth(.|\n)*hint: pass a number"):
        reward_fn(response_text="", ground_truth=ground_truth)


@given(number=st.integers(), zeros=st.integers(0, 3), prefix=st.sampled_from(["", "#### ", "The answer is "]))
def test_any_integer_matches_itself_however_it_is_written(number: int, zeros: int, prefix: str) -> None:
    written = f"{number:,}" + ("." + "0" * zeros if zeros else "")
    assert reward_fn(response_text=f"{prefix}{written}", ground_truth=number) == 1.0
    assert reward_fn(response_text=f"{prefix}{written}", ground_truth=number + 1) == 0.0


@given(number=st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=4))
def test_any_decimal_matches_itself_with_commas(number: Decimal) -> None:
    assert reward_fn(response_text=f"Total: {number:,f}.", ground_truth=str(number)) == 1.0


@given(st.one_of(st.text(), st.text(alphabet="0123456789.,/-+$ #=\\{}boxedanswer is\n")))
def test_no_text_breaks_it(text: str) -> None:
    assert reward_fn(response_text=text, ground_truth=10**400 + 1) == 0.0
