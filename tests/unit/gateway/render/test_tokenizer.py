"""The fast ways to ids and back agree with the tokenizer's own code, or are not used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentcore_rl_toolkit.errors import PromptTooLong
from agentcore_rl_toolkit.gateway.render.tokenizer import ByteTable, FastEncoder, Tokenizer, load_tokenizer
from support.tokenizers import make_tokenizer


def backend() -> Any:
    return make_tokenizer().backend_tokenizer


def own(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


FAST, TABLE, OWN = FastEncoder.create(backend()), ByteTable.create(backend()), backend()
WHOLE = Tokenizer(make_tokenizer())
PARTS = st.sampled_from(["<|im_start|>", "<|im_end|>", "<think>", "</tool_call>", "the weather", "  \n\t", "é", "👩‍👧"])


@given(st.lists(st.one_of(PARTS, st.text(max_size=20)), max_size=8).map("".join))
def test_ids_are_the_tokenizers_own(text: str) -> None:
    assert FAST is not None
    assert FAST.encode(text).tolist() == own(OWN, text)


@given(st.lists(st.integers(0, OWN.get_vocab_size() + 2), max_size=12), st.booleans())
def test_text_is_the_tokenizers_own(ids: list[int], skip: bool) -> None:
    text = OWN.decode(ids, skip_special_tokens=skip)
    assert WHOLE.decode(ids, skip) == WHOLE.decode(tuple(ids), skip_special_tokens=skip) == text
    assert TABLE is not None
    assert TABLE.decode(ids, skip) == text


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_a_number_that_cannot_be_an_id_is_refused(wrong: int) -> None:
    for decode in (WHOLE.decode, OWN.decode):
        with pytest.raises(OverflowError):
            decode([5, wrong])


def test_text_is_normalized_as_the_tokenizer_does_it() -> None:
    composing = backend()
    composing.normalizer = normalizers.NFC()
    fast = FastEncoder.create(composing)
    assert fast is not None
    decomposed = "cafe\u0301"
    assert fast.encode(decomposed).tolist() == own(composing, decomposed) != own(backend(), decomposed)


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
def test_tokenizers_of_many_kinds_are_fast(make: Any) -> None:
    fast, text = FastEncoder.create(make()), "<|im_start|>The Weather  in\nZürich, don't"
    assert fast is not None
    assert fast.encode(text).tolist() == own(make(), text)


def of_words() -> Any:
    words = Backend(models.WordLevel(unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(["the weather"], trainers.WordLevelTrainer(special_tokens=["?"], show_progress=False))
    return words


class Another:
    """Says it is one tokenizer and is another."""

    def to_str(self) -> str:
        return str(backend().to_str())

    def __getattr__(self, name: str) -> Any:
        return getattr(with_lower_case(), name)


@pytest.mark.parametrize("make", [of_words, Another])
def test_a_tokenizer_that_it_does_not_do_as_well_is_left_to_itself(make: Any) -> None:
    assert FastEncoder.create(make()) is None


class WithTheOtherSpecialTokens:
    """Skips special tokens when it should not."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return str(backend().decode(ids, skip_special_tokens=not skip_special_tokens))

    def __getattr__(self, name: str) -> Any:
        return getattr(backend(), name)


def with_words_joined() -> Any:
    joined = backend()
    joined.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return joined


def with_a_changed_added_token() -> Any:
    """Its decoder changes one added token, and nothing else."""
    changed = backend()
    changed.add_tokens(["odd\u2581one", *(f"w{n}" for n in range(30_000))])
    changed.decoder = decoders.Sequence([decoders.Replace("\u2581", "_"), decoders.ByteLevel()])
    return changed


@pytest.mark.parametrize("make", [of_words, WithTheOtherSpecialTokens, with_words_joined, with_a_changed_added_token])
def test_the_table_is_not_used_if_the_tokenizer_decodes_differently(make: Any) -> None:
    assert ByteTable.create(make()) is None
    if make is not WithTheOtherSpecialTokens:
        whole, ids = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=make())), list(range(make().get_vocab_size()))
        assert whole.decode(ids) == make().decode(ids, skip_special_tokens=False)


def test_an_added_token_decodes_to_its_own_text() -> None:
    added = backend()
    added.add_tokens(["<｜two words｜>", "né"])
    table, ids = ByteTable.create(added), [5, *(added.token_to_id(token) for token in ("<｜two words｜>", "né")), 6]
    assert table is not None
    assert table.decode(ids, False) == table.decode(ids, False) == added.decode(ids, skip_special_tokens=False)
    assert "<｜two words｜>" in table.decode(ids, False)


def test_a_gap_in_the_vocabulary_has_no_text() -> None:
    described = json.loads(backend().to_str())
    last = next(token for token, number in described["model"]["vocab"].items() if number == 20)
    described["model"]["vocab"][last] = 5000
    described["model"]["merges"] = []
    gapped = Backend.from_str(json.dumps(described))
    whole = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=gapped))
    ids = [21, 20, 22, 5000, 23]
    assert whole.decode(ids) == gapped.decode(ids, skip_special_tokens=False)


def test_without_the_package_the_tokenizer_does_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert FastEncoder.create(backend()) is None
    assert Tokenizer(make_tokenizer()).encode("the weather") == own(OWN, "the weather")


def test_what_it_gives_up_on_the_tokenizer_does() -> None:
    """A byte that the vocabulary hasn't is left out."""
    described = json.loads(backend().to_str())["model"]
    kept = [token for token in described["vocab"] if token != "\u0101"]  # how byte-level tokenizers write the byte 1
    merges = [tuple(merge) for merge in described["merges"]]
    lacking = Backend(models.BPE({token: number for number, token in enumerate(kept)}, merges))
    lacking.pre_tokenizer, lacking.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast, text = FastEncoder.create(lacking), "a\x01b"
    assert fast is not None
    with pytest.raises(ValueError, match="no token"):
        fast.encode(text)
    assert Tokenizer(PreTrainedTokenizerFast(tokenizer_object=lacking)).encode(text) == own(lacking, text)


def test_lone_surrogates_are_replaced() -> None:
    assert Tokenizer(make_tokenizer()).encode("a\ud800b") == own(OWN, "a\ufffdb")


def test_a_bound_holds_for_all_texts_together() -> None:
    one = len(WHOLE.encode("the weather"))
    with WHOLE.bound(2 * one):
        assert WHOLE.encode("the weather") == WHOLE.encode("the weather")
        with pytest.raises(PromptTooLong):
            WHOLE.encode("the weather")
        with pytest.raises(PromptTooLong):  # also after someone caught the first one
            WHOLE.encode("the")
    assert len(WHOLE.encode("the weather")) == one


@given(st.lists(PARTS, max_size=40).map(lambda parts: "".join(parts) * 50), st.integers(0, 3000))
def test_a_bound_changes_no_id(text: str, most: int) -> None:
    ids = WHOLE.encode(text)
    with WHOLE.bound(most):
        if len(ids) <= most:
            assert WHOLE.encode(text) == ids
        else:
            with pytest.raises(PromptTooLong):
                WHOLE.encode(text)


def test_a_folder_with_a_tokenizer_and_no_model_is_loaded(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()
    assert load_tokenizer(tmp_path).encode("sunny") == make_tokenizer().encode("sunny")
