"""Small tokenizers, made here: bytes and a few merges, with the special tokens of a model family."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

QWEN3 = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN3_PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
_TEXTS = [
    "the weather in Paris is sunny and warm, what is two plus two? the answer is four",
    '{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}',
    "system user assistant tool function parameters properties description required string",
]

# A template no renderer knows: the generic bridge has to prove itself on it.
PLAIN_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ {'name': c.function.name, 'arguments': c.function.arguments} "
    "| tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# One that rewrites history: the last assistant message gets a mark. It can't be bridged.
REWRITING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{% if loop.last %}!{% endif %}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def _backend(special: tuple[str, ...], plain: tuple[str, ...]) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    text: str = tokenizer.to_str()
    return text


def make_tokenizer(name: str = "Qwen/Qwen3-0.6B", template: str | None = None) -> Any:
    """A fast tokenizer that says it is `name`'s."""
    backend = Tokenizer.from_str(_backend(tuple(QWEN3), tuple(QWEN3_PLAIN)))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>", name_or_path=name
    )
    tokenizer.chat_template = template
    return tokenizer
