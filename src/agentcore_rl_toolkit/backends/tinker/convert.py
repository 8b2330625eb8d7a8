"""Groups of rollouts → examples → Tinker's Datums. Pure."""

from __future__ import annotations

import tinker

from ..loop.service_examples import Example, to_examples

__all__ = ["Example", "to_datum", "to_examples"]


def to_datum(example: Example) -> tinker.Datum:
    """An example as Tinker's losses take it."""
    inputs = {"target_tokens": example.targets, "logprobs": example.logprobs, "advantages": example.advantages}
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(example.tokens.tolist()),
        loss_fn_inputs={name: tinker.TensorData.from_numpy(values) for name, values in inputs.items()},
    )
