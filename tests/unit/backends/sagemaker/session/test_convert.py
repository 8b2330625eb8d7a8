"""Examples as the datums of a training session, and in requests of a bounded size."""

from __future__ import annotations

from agentcore_rl_toolkit.backends.loop.service_examples import to_examples
from agentcore_rl_toolkit.backends.sagemaker.session.convert import passes, to_session_datum
from support.rollouts import make_group, make_rollout, make_row


def test_a_datum_has_what_the_sessions_losses_take() -> None:
    row = make_row([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0.0, -1.0])
    example, _ = to_examples([make_group(make_rollout(1.0, row), make_rollout(0.0))], scale=False)
    datum = to_session_datum(example)
    assert datum["modelInput"] == {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3, 4]}]}
    assert datum["lossFnInputs"] == {
        "target_tokens": {"dtype": "int64", "data": [2, 3, 4, 5], "shape": [4]},
        "weights": {"dtype": "float32", "data": [0.0, 1.0, 0.0, 1.0], "shape": [4]},
        "logprobs": {"dtype": "float32", "data": [0.0, -0.5, 0.0, -1.0], "shape": [4]},
        "advantages": {"dtype": "float32", "data": [0.0, 0.5, 0.0, 0.5], "shape": [4]},
    }


def test_a_pass_is_bounded_in_rows_and_in_bytes() -> None:
    short = [make_rollout(float(i % 2), make_row([1], [2])) for i in range(1030)]
    assert [len(part) for part in passes(to_examples([make_group(*short)]))] == [1024, 6]
    long = [make_rollout(float(i % 2), make_row([1], [2] * 50_000)) for i in range(4)]
    examples = to_examples([make_group(*long)])
    parts = list(passes(examples))
    assert [len(part) for part in parts] == [2, 2]
    assert [example for part in parts for example in part] == examples
    assert list(passes([])) == []
