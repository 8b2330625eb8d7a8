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


# The tokens that the renderers of other families ask for: the one that ends a turn, special ones, plain ones.
_QWEN = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
_THINK = ["<think>", "</think>"]
_GLM = ["<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"]
_ARGUMENTS = ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
_DEEPSEEK = [
    f"<｜{name}｜>"
    for name in (
        *("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant", "tool▁calls▁begin", "tool▁calls▁end"),
        *("tool▁call▁begin", "tool▁call▁end", "tool▁sep", "tool▁outputs▁begin", "tool▁outputs▁end"),
        *("tool▁output▁begin", "tool▁output▁end", "latest_reminder"),
        *("action", "query", "authority", "domain", "title", "read_url"),
    )
]
_KIMI = [
    *(
        "[BOS]",
        "[EOS]",
        "<|im_end|>",
        "<|im_user|>",
        "<|im_assistant|>",
        "<|im_system|>",
        "<|im_middle|>",
        "<|endoftext|>",
    ),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"),
]
_LLAMA = [
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
    "<|python_tag|>",
]
_QWEN_CALLS = QWEN3_PLAIN[2:]
FAMILIES: dict[str, tuple[str, list[str], list[str]]] = {
    "qwen3": ("<|im_end|>", QWEN3, QWEN3_PLAIN),
    "prime-qwen3": ("<|im_end|>", QWEN3, QWEN3_PLAIN),
    "qwen3.5": ("<|im_end|>", _QWEN, QWEN3_PLAIN),
    "qwen3.6": ("<|im_end|>", _QWEN, QWEN3_PLAIN),
    "qwen3.8": ("<|im_end|>", _QWEN, QWEN3_PLAIN),
    "qwen3-vl": ("<|im_end|>", _QWEN, QWEN3_PLAIN),
    "nemotron-3": ("<|im_end|>", QWEN3, QWEN3_PLAIN),
    "nemotron-3.5": ("<|im_end|>", QWEN3, QWEN3_PLAIN),
    "glm-4.5": ("<|endoftext|>", _GLM, [*_THINK, *_QWEN_CALLS, *_ARGUMENTS]),
    "glm-5": ("<|endoftext|>", _GLM, [*_THINK, *_QWEN_CALLS, *_ARGUMENTS]),
    "glm-5.1": ("<|endoftext|>", _GLM, [*_THINK, *_QWEN_CALLS, *_ARGUMENTS]),
    "minimax-m2": ("[e~[", ["]~!b[", "]~b]", "[e~["], [*_THINK, "<minimax:tool_call>", "</minimax:tool_call>"]),
    "deepseek-v3": ("<｜end▁of▁sentence｜>", _DEEPSEEK, _THINK),
    "deepseek-r1": ("<｜end▁of▁sentence｜>", _DEEPSEEK, _THINK),
    "deepseek-v4": ("<｜end▁of▁sentence｜>", [*_DEEPSEEK, "｜DSML｜"], _THINK),
    "kimi-k2": ("<|im_end|>", _KIMI, []),
    "kimi-k2.5": ("<|im_end|>", _KIMI, _THINK),
    "llama-3": ("<|eot_id|>", _LLAMA, []),
    "laguna-xs.2": ("</assistant>", ["〈|EOS|〉", "<assistant>", "</assistant>"], [*_THINK, *_QWEN_CALLS]),
}


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


def make_tokenizer(name: str = "Qwen/Qwen3-0.6B", template: str | None = None, family: str = "qwen3") -> Any:
    """A fast tokenizer that says it is `name`'s, with the special tokens of a family."""
    end, special, plain = FAMILIES[family]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_backend(tuple(special), tuple(plain))),
        eos_token=end,
        pad_token=special[0],
        name_or_path=name,
    )
    tokenizer.chat_template = template
    return tokenizer
