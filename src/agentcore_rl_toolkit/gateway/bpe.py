"""Byte-level BPE in `tiktoken`, several times faster than the general tokenizer; the same ids, or not used at all.

Most models people train have such a tokenizer (Qwen, Llama 3, GPT-2 and their kin). What makes it one is read from its
description; whether both agree is then tried on its own vocabulary, piece by piece and in random order.
"""

from __future__ import annotations

import json
import random
import unicodedata
from array import array
from collections.abc import Callable
from typing import Any

from .engine.base import IDS

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TRIED = 4000
_HARD = [
    "  two  spaces\n\n\ttabs and\r\nlines   ",
    "don't I'LL we'Ve 1234567 3.14e-10 x=y+z;",
    "naïve café Ελληνικά русский 中文字符 日本語 한국어 العربية हिन्दी 👩‍👩‍👧‍👦🏳️‍🌈",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "n": [1, 2.5, null]}}',
    "def f(x):\n    return [i ** 2 for i in range(x) if i % 3]  # comment\n",
    "<|im_start|>user\nhi<|im_end|><think></think>\u2028\u0085\u00a0\ufeff\x00",
]


def fast_encoder(backend: Any) -> Callable[[str], array[int]] | None:
    """Text to ids for a compiled tokenizer of Hugging Face, None where it is of another kind."""
    try:
        import tiktoken
    except ImportError:
        return None
    described = json.loads(backend.to_str())
    pattern, ranks = _pattern(described), _ranks(described)
    added = described.get("added_tokens", [])
    if pattern is None or ranks is None or any(t["lstrip"] or t["rstrip"] or t["single_word"] for t in added):
        return None
    special = {t["content"]: t["id"] for t in sorted(added, key=lambda t: -len(t["content"]))}
    compose = described.get("normalizer") is not None
    try:
        encoding = tiktoken.Encoding("gateway", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    except Exception:  # a pattern or a vocabulary it doesn't take
        return None

    def encode(text: str) -> array[int]:
        if compose and not text.isascii():
            text = unicodedata.normalize("NFC", text)
        ids = array(IDS)  # spares making a list of them
        ids.frombytes(encoding.encode_to_numpy(text, allowed_special="all", disallowed_special=()).tobytes())
        return ids

    return encode if _agree(backend, encode) else None


def _pattern(described: dict[str, Any]) -> str | None:
    """How text is split before merging, if that is all there is to it."""
    normalizer = described.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        return None
    steps = described.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    if len(steps) == 1:
        return _GPT2 if steps[0].get("use_regex", True) else None
    split = steps[0]
    if len(steps) != 2 or steps[1].get("use_regex", True) or split.get("type") != "Split" or split.get("invert"):
        return None
    pattern = split["pattern"].get("Regex") if split.get("behavior") == "Isolated" else None
    return pattern if isinstance(pattern, str) else None


def _ranks(described: dict[str, Any]) -> dict[bytes, int] | None:
    model = described["model"]
    if model.get("type") != "BPE" or model.get("dropout") or model.get("byte_fallback"):
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    characters = _byte_characters()
    added = {token["content"] for token in described.get("added_tokens", [])}
    try:
        return {
            bytes(characters[character] for character in token): number
            for token, number in model["vocab"].items()
            if token not in added
        }
    except KeyError:
        return None


def _agree(backend: Any, encode: Callable[[str], array[int]]) -> bool:
    chance = random.Random(0)
    size = backend.get_vocab_size(with_added_tokens=True)
    texts = list(_HARD)
    for _ in range(_TRIED // 20):
        texts.append(backend.decode([chance.randrange(size) for _ in range(20)], skip_special_tokens=False))
    try:
        return all(backend.encode(text, add_special_tokens=False).ids == encode(text).tolist() for text in texts)
    except Exception:
        return False


def _byte_characters() -> dict[str, int]:
    """The printable stand-ins that byte-level tokenizers write bytes as."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {chr(byte): byte for byte in plain}
    rest = (byte for byte in range(256) if byte not in plain)
    return characters | {chr(256 + place): byte for place, byte in enumerate(rest)}
