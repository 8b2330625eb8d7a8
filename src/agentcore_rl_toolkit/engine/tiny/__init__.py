"""The built-in policy: a chat model of two megabytes with one tool, so that demos and tests need no model hub.

Its name is `tiny` wherever a model is named. It solves the problems of `examples/strands_math_agent` badly, because it
guesses more often than it calls its calculator. `make tiny-model` makes its files.

Imports no other station.
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
