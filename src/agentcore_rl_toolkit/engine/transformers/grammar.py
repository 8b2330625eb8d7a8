"""The tokens that the form of a reply still allows, computed by `llguidance`."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
from torch import Tensor

from ...errors import EngineError
from ..reply_form import GAP, THINK, THOUGHT, Form

_LEXEMES = re.compile(r'\s+|[{}\[\]:,]|"[^"]*"|[^\s{}\[\]:,"]+|"')


class GrammarFactory:
    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: frozenset[int]) -> None:
        import llguidance.hf

        self._library = llguidance
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocab_size, eos_token=sorted(eos_ids) or None)
        self.vocab_size = vocab_size
        self._added: dict[str, int] = tokenizer.get_added_vocab()
        self._marks = re.compile(f"({'|'.join(map(re.escape, sorted(self._added, key=len, reverse=True)))})")

    def compile(self, form: Form) -> Grammar:
        """Raises `EngineError` for a schema that `llguidance` can't follow."""
        matcher = self._library.LLMatcher
        try:
            compiled = matcher(self._tokenizer, matcher.grammar_from_lark(self._lark(form)), log_level=0)
        except ValueError as error:
            raise EngineError(f"json_schema can't be followed: {error}", status=400) from error
        if compiled.is_error():
            raise EngineError(f"json_schema can't be followed: {compiled.get_error()}", status=400)
        return Grammar(compiled, self.vocab_size)

    def _lark(self, form: Form) -> str:
        """A form in Lark, the grammar language of `llguidance`."""
        ways = {"call": form.call, "answer": form.schema is not None}
        rules = [f"reply: {' | '.join(name for name, there in ways.items() if there)}"]
        if form.call:
            rules += [f"call: {self._literal(form.call)} FREE? <[*]>*", "FREE: /(?s:.+)/"]
        if form.schema is not None:
            rules.append(f"answer: %json {json.dumps(form.schema or {'type': 'object'})}")
        if form.thought:
            begin = f"{self._literal(THINK)} " if form.thought == "optional" else ""
            bare = " | gap reply" if form.thought == "optional" else ""
            rules += [f"start: {begin}thought gap reply{bare}", f"gap: /{GAP}/", *self._thought()]
        return "\n".join([*rules, *([] if form.thought else ["start: reply"])])

    def _thought(self) -> list[str]:
        """Rules for the rest of a thought, including its end."""
        if THOUGHT in self._added:
            return [f"thought: TEXT {self._literal(THOUGHT)}", "TEXT: /(?s:.*)/"]
        return [f"thought[suffix={json.dumps(THOUGHT)}]: /(?s:.*)/"]

    def _literal(self, text: str) -> str:
        """A text, with added tokens named by their ids, because no text spells them.

        The rest is cut as JSON is: of two lexemes that begin alike, `llguidance` considers only the longer one.
        """
        added = self._added
        parts = self._marks.split(text) if added else [text]
        cut = (piece for part in parts for piece in ([part] if part in added else _LEXEMES.findall(part)))
        return " ".join(f"<[{added[piece]}]>" if piece in added else json.dumps(piece) for piece in cut)


class Grammar:
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
        """Consume a token; True if the text is complete and nothing can follow."""
        self._matcher.consume_token(token)
        return bool(self._matcher.is_stopped())
