"""Examples → the datums of a SageMaker training session, in requests of a bounded size. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...loop.service_examples import Example

_MOST_ROWS, _MOST_BYTES = 1024, 8_000_000
"""Of one pass; gradients of several passes add up until the optimizer's step."""
_BYTES_PER_TOKEN = 60  # five JSON arrays, of which three are floats


def to_session_datum(example: Example) -> dict[str, Any]:
    """An example as the session's losses take it: Tinker's inputs, and weights that mask."""
    inputs: dict[str, tuple[str, Any]] = {
        "target_tokens": ("int64", example.targets),
        "weights": ("float32", example.mask),
        "logprobs": ("float32", example.logprobs),
        "advantages": ("float32", example.advantages),
    }
    return {
        "modelInput": {"chunks": [{"type": "encoded_text", "tokens": example.tokens.tolist()}]},
        "lossFnInputs": {
            name: {"dtype": dtype, "data": values.tolist(), "shape": [len(values)]}
            for name, (dtype, values) in inputs.items()
        },
    }


def passes(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """The examples in order, in parts that fit into one request each."""
    part: list[Example] = []
    size = 0
    for example in examples:
        more = _BYTES_PER_TOKEN * len(example.tokens)
        if part and (len(part) == _MOST_ROWS or size + more > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(example)
        size += more
    if part:
        yield part
