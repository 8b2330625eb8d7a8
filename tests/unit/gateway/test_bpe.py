"""The quick encoder: the same ids as the tokenizer's own, or not used at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers

from agentcore_rl_toolkit.gateway.bpe import fast_encoder
from agentcore_rl_toolkit.gateway.tokenizer import Tokenizer
from support.tokenizers import make_tokenizer


def backend() -> Any:
    return make_tokenizer().backend_tokenizer


def own(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


QUICK, OWN = fast_encoder(backend()), backend()
PARTS = st.sampled_from(["<|im_start|>", "<|im_end|>", "<think>", "</tool_call>", "the weather", "  \n\t", "é", "👩‍👧"])


@given(st.lists(st.one_of(PARTS, st.text(max_size=20)), max_size=8).map("".join))
def test_ids_are_the_tokenizers_own(text: str) -> None:
    assert QUICK is not None
    assert QUICK(text).tolist() == own(OWN, text)


def test_text_is_normalized_as_the_tokenizer_does_it() -> None:
    composing = backend()
    composing.normalizer = normalizers.NFC()
    quick = fast_encoder(composing)
    assert quick is not None
    decomposed = "cafe\u0301"
    assert quick(decomposed).tolist() == own(composing, decomposed) != own(backend(), decomposed)


def with_ids_in_another_order() -> Any:
    described = json.loads(backend().to_str())
    vocabulary = described["model"]["vocab"]
    merged = [token for token in vocabulary if len(token) > 1]
    ids = [vocabulary[token] for token in merged]
    vocabulary.update(zip(merged, reversed(ids), strict=True))
    return Backend.from_str(json.dumps(described))


def with_prefix_space() -> Any:
    spaced = backend()
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return spaced


def with_lower_case() -> Any:
    lower = backend()
    lower.normalizer = normalizers.Lowercase()
    return lower


@pytest.mark.parametrize("make", [with_ids_in_another_order, with_prefix_space, with_lower_case])
def test_a_tokenizer_of_another_kind_is_left_to_itself(make: Any) -> None:
    assert fast_encoder(make()) is None


def test_what_it_gives_up_on_the_tokenizer_does() -> None:
    tokenizer = Tokenizer(make_tokenizer())
    text = " " * 1_000_000
    assert tokenizer.encode(text) == own(OWN, text)


def test_lone_surrogates_are_no_text() -> None:
    assert Tokenizer(make_tokenizer()).encode("a\ud800b") == own(OWN, "a\ufffdb")
