"""Examples as Tinker's Datums."""

from __future__ import annotations

import pytest

pytest.importorskip("tinker")

from agentcore_rl_toolkit.backends.tinker.convert import to_datum, to_examples
from support.rollouts import make_group, make_rollout, make_row


def test_a_datum_has_what_tinkers_losses_take() -> None:
    row = make_row([1, 2], [3, 4], logprobs=[-0.5, -1.0])
    example, _ = to_examples([make_group(make_rollout(1.0, row), make_rollout(0.0))], scale=False)
    datum = to_datum(example)
    assert datum.model_input.to_ints() == [1, 2, 3]
    values = {name: [float(value) for value in tensor.data] for name, tensor in datum.loss_fn_inputs.items()}
    assert values == {
        "target_tokens": [2.0, 3.0, 4.0],
        "logprobs": [0.0, -0.5, -1.0],
        "advantages": [0.0, 0.5, 0.5],
    }
    assert {name: tensor.dtype for name, tensor in datum.loss_fn_inputs.items()} == {
        "target_tokens": "int64",
        "logprobs": "float32",
        "advantages": "float32",
    }
