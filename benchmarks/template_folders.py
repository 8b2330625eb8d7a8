"""Tokenizers made of chat templates: the 41 that TRL ships, and others in the formats of much trained families.

No vocabulary can be downloaded here, and none is needed: a small one is trained on the templates' own text, split as
GPT-4's and Qwen's is, so that merges cross the same seams; a family's special tokens are added to it. A folder's name
says nothing of the model.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MARK = re.compile(
    r"<\|[^<>|'\"\s]+\|>|<\|[a-z_\"]+>|<[a-z_]+\|>|<｜[^<>｜'\"]+｜>"
    r"|\[(?:/?INST|gMASK|TOOL_CALLS|/?AVAILABLE_TOOLS|/?TOOL_RESULTS|/?SYSTEM_PROMPT|ARGS)\]|<sop>"
    r"|</?(?:think|tool_call|tool_response|arg_key|arg_value|start_of_turn|end_of_turn|end_of_utterance|s)>"
)
_PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
_QWEN = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
    *("<|video_pad|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
]
_GEMMA = ["<pad>", '<|"|>', "<|image>", "<image|>", "<|audio>", "<audio|>"]
_FAMILIES: dict[str, tuple[str, str | None, list[str]]] = {
    "qwen": ("<|im_end|>", None, _QWEN),
    "nemotron": ("<|im_end|>", None, _QWEN),
    "cohere": ("<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", []),
    "deepseek": ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", []),
    "gemma": ("<eos>", "<bos>", _GEMMA),
    "diffusion_gemma": ("<eos>", "<bos>", _GEMMA),
    "glm": ("<|endoftext|>", None, []),
    "gptoss": ("<|return|>", "<|startoftext|>", ["<|constrain|>", "<|endoftext|>"]),
    "idefics3": ("<|end_of_text|>", "<|begin_of_text|>", []),
    "lfm2": ("<|im_end|>", "<|startoftext|>", []),
    "llama3": ("<|eot_id|>", "<|begin_of_text|>", ["<|end_of_text|>", "<|eom_id|>", "<|python_tag|>"]),
    "llava": ("</s>", "<s>", []),
    "muse": ("<|eot|>", "<|begin_of_text|>", []),
    "phi": ("<|endoftext|>", "<s>", []),
    "smolvlm": ("<end_of_utterance>", None, []),
    "mistral": ("</s>", "<s>", []),
    "smollm": ("<|im_end|>", None, []),
    "olmo": ("<|endoftext|>", "<|bos|>", []),
    "granite": ("<|end_of_text|>", None, []),
    "hermes": ("<|endoftext|>", None, ["<|im_start|>", "<|im_end|>"]),
}
"""By how a template's name begins: the tokenizer's end and beginning of text, and tokens its template doesn't show."""

_CALLS = "{'name': c.function.name, 'arguments': c.function.arguments} | tojson"
WRITTEN = {
    "mistral": (
        "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
        "{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}"
        "[/SYSTEM_PROMPT]{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}"
        "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% else %}{{ m.content or '' }}{% if m.tool_calls %}[TOOL_CALLS]["
        "{% for c in m.tool_calls %}{{ " + _CALLS + " }}{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}"
        "{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "smollm": (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "olmo": (
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% if not loop.last %}\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}\n<|assistant|>\n{% endif %}"
    ),
    "phi4": (
        "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
    ),
    "granite": (
        "{% if tools %}<|start_of_role|>available_tools<|end_of_role|>{{ tools | tojson }}<|end_of_text|>\n{% endif %}"
        "{% for m in messages %}<|start_of_role|>{{ 'tool_response' if m.role == 'tool' else m.role }}<|end_of_role|>"
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ " + _CALLS + " }}</tool_call>{% endfor %}"
        "<|end_of_text|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
    ),
    "hermes": (
        "{% if tools %}<|im_start|>system\n<tools>{{ tools | tojson }}</tools><|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "<tool_call>\n{{ " + _CALLS + " }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
}
"""Written here, in the formats of Mistral, SmolLM, OLMo, Phi-4, Granite, and a ChatML whose end is not its eos."""


@cache
def _folder() -> Path:
    import trl

    return Path(str(trl.__file__)).parent / "chat_templates"


def shipped() -> list[str]:
    """The templates that TRL ships, without its patched ones."""
    return sorted(path.stem for path in _folder().glob("*.jinja") if "training" not in path.stem)


def template_text(name: str) -> str:
    return WRITTEN[name] if name in WRITTEN else (_folder() / f"{name}.jinja").read_text()


@cache
def _base() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([template_text(name) for name in shipped()], trainer)
    text: str = tokenizer.to_str()
    return text


def make_tokenizer(name: str) -> Any:
    """A tokenizer with the template of that name and its family's special tokens."""
    template = template_text(name)
    end, begin, others = next(known for prefix, known in _FAMILIES.items() if name.startswith(prefix))
    roles = re.findall(r"<\|(?:user|assistant|system|tool)\|>", "<|user|><|assistant|><|system|><|tool|>")
    tokens = [*([begin] if begin else []), end, *others, *_MARK.findall(template), *(roles if name == "olmo" else [])]
    tokenizer = Tokenizer.from_str(_base())
    for token in dict.fromkeys(tokens):
        if _PLAIN.fullmatch(token):
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
        else:
            tokenizer.add_special_tokens([AddedToken(token, special=True)])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=begin)
    made.chat_template = template
    return made


def write_folder(name: str, folder: Path) -> Path:
    """A checkpoint's tokenizer in a folder whose name says nothing."""
    make_tokenizer(name).save_pretrained(folder)
    return folder
