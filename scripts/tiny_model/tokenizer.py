"""The tiny model's tokenizer: byte-level BPE learned from the corpus, Qwen's control tokens, a chat template."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from corpus import Message
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
RESERVED = CONTROL + TAGS
# Digits stay alone, so that numbers can be copied. Words keep their punctuation, so that JSON takes few tokens.
PIECES = r"\p{N}| ?[^\s\p{N}]+|\s"
SIZE = 1024  # at most: the corpus has fewer pieces to merge
CONTEXT = 2048


def make_tokenizer(conversations: list[list[Message]], tools: list[dict[str, Any]]) -> Any:
    """A tokenizer that says such conversations in few tokens, and everything else somehow."""
    blank = _with_template(Tokenizer(models.BPE()))
    texts = [blank.apply_chat_template(messages, tools=tools, tokenize=False) for messages in conversations]
    reserved = "|".join(map(re.escape, RESERVED))
    return _with_template(_learn(piece for text in texts for piece in re.split(reserved, text)))


def _learn(texts: Iterable[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(RESERVED),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens([AddedToken(token, special=True) for token in CONTROL])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAGS])
    return backend


def _with_template(backend: Tokenizer) -> Any:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=CONTEXT
    )
    tokenizer.chat_template = TEMPLATE.read_text()
    return tokenizer
