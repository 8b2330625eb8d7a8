"""A policy that says what a script has for it, in tokens of a real vocabulary that its tokenizer would not choose.

Qwen's vocabulary comes from PyPI, within the package `dashscope`: it is turned into a tokenizer once.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentcore_rl_toolkit.engine.base import SampleRequest
from real_harnesses.harness import TASK
from support.tokenizers import QWEN3, QWEN3_PLAIN

VOCABULARY = "dashscope==2.0.2"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_tokenizer(ranks_file: Path, saved: Path) -> None:
    """Write Qwen's vocabulary as a file of the package `tokenizers`."""
    lines = ranks_file.read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    letters = _letters()
    text = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges = [tuple(text[part] for part in _halves(token, ranks)) for token in ranks if len(token) > 1]
    tokenizer = Tokenizer(models.BPE({text[token]: rank for token, rank in ranks.items()}, merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in QWEN3])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in QWEN3_PLAIN])
    tokenizer.save(str(saved))


def _letters() -> dict[int, str]:
    """The letters that stand for bytes in such a file."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def _halves(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two parts that a token is merged from, last of all."""
    parts = [token[place : place + 1] for place in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[at] + parts[at + 1], 1 << 30), at) for at in range(len(parts) - 1)]
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


@cache
def load_tokenizer(saved: Path) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(saved), eos_token="<|im_end|>", pad_token="<|endoftext|>", name_or_path="Qwen/Qwen3-8B"
    )


def policy(tokenizer: Any, steps: Sequence[str], mark: str, fault: list[str]) -> Callable[[SampleRequest], list[int]]:
    """Says the first of the steps that the prompt has not, and a few words to a side call.

    What goes wrong is put into `fault`: an agent would only try again.
    """
    asked: dict[str, int] = {}

    def sample(request: SampleRequest) -> list[int]:
        prompt = tokenizer.decode(request.prompt)
        if TASK not in prompt or mark not in prompt:
            return uncanonical(tokenizer, "A shopping list")
        step = next((step for step in steps if step not in prompt), steps[-1])
        begun = next((length for length in range(len(step), 0, -1) if prompt.endswith(step[:length])), 0)
        asked[step] = asked.get(step, 0) + 1
        if asked[step] > 2:
            fault.append(f"the prompt has no trace of {step!r}, which was said; it ends with {prompt[-500:]!r}")
            return uncanonical(tokenizer, steps[-1])
        return uncanonical(tokenizer, step[begun:])  # a call that is forced has begun already

    return sample


def uncanonical(tokenizer: Any, text: str) -> list[int]:
    """Tokens for a text; every third word is sampled in two pieces instead of one."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    sampled: list[int] = []
    for place, token in enumerate(ids):
        word = tokenizer.decode([token])
        if place % 3 == 1 and len(word) > 2 and word.isascii() and token not in tokenizer.added_tokens_decoder:
            parts = (word[:2], word[2:])
            sampled += [part for half in parts for part in tokenizer.encode(half, add_special_tokens=False)]
        else:
            sampled.append(token)
    assert tokenizer.decode(sampled) == text
    return [*sampled, tokenizer.eos_token_id]
