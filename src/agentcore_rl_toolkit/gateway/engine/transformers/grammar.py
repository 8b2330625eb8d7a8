"""What a JSON schema still allows, token by token, by `llguidance`."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from ..base import EngineError


class Grammars:
    """Makes grammars for one tokenizer."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: frozenset[int]) -> None:
        import llguidance.hf

        self._library = llguidance
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=sorted(eos_ids) or None)
        self.vocab_size = vocab_size

    def of_schema(self, schema: dict[str, Any]) -> Grammar:
        """Raises `EngineError` for a schema that can't be followed."""
        matcher = self._library.LLMatcher
        text = json.dumps(schema or {"type": "object"})
        try:
            made = matcher(self._tokenizer, matcher.grammar_from_json_schema(text), log_level=0)
        except ValueError as error:
            raise EngineError(f"json_schema can't be followed: {error}", status=400) from error
        if made.is_error():
            raise EngineError(f"json_schema can't be followed: {made.get_error()}", status=400)
        return Grammar(made, self.vocab_size)


class Grammar:
    """How far one sequence has come."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._bits = torch.zeros((vocab_size + 31) // 32, dtype=torch.int32)
        self._shifts = torch.arange(32, dtype=torch.int32)
        self._vocab_size = vocab_size

    def forbidden(self) -> Tensor:
        """A boolean for each token, on the CPU."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.data_ptr(), self._bits.nbytes)
        allowed = (self._bits[:, None] >> self._shifts) & 1
        return allowed.flatten()[: self._vocab_size] == 0

    def accept(self, token: int) -> bool:
        """Take a token; whether the text is whole now and nothing can follow."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())
