"""The built-in policy: a chat model of two megabytes with one tool, so that demos and tests need no model hub.

Wherever a model is named, it is called `tiny`. It solves the problems of `examples/strands_math_agent`, and not well:
it rather guesses than uses its calculator. `make tiny-model` makes its files; this module only knows where they are.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["NAME", "path"]

NAME = "tiny"


def path() -> Path:
    """The folder with weights, tokenizer and chat template, as Transformers loads them.

    >>> path().name
    'model'
    """
    return Path(__file__).parent / "model"
