"""Tokenizers and image processors of every family that sees, made here; and Transformers' own processors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Gemma4ImageProcessorPil, Gemma4Processor, InklingProcessor
from transformers.image_processing_base import ImageProcessingMixin

from .vlm import ImageTextProcessor, image_processor

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import template_folders


class GemmaImageTextProcessor(Gemma4Processor):
    """Transformers' own processor, without the parts for sounds and videos, which need torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)

    def validate_inputs(self, images: Any = None, text: Any = None, **more: Any) -> None:
        """Transformers refuses text without images when there is no audio token."""


class InklingPatches(ImageProcessingMixin):
    """Counts patches as Inkling's image processor does, which needs torchvision."""

    model_input_names = ("pixel_values",)

    def __call__(self, images: Any, **_: Any) -> dict[str, Any]:
        (rows,) = images if isinstance(images[0], list) else [images]
        return {"num_patches": [-(-image.height // 40) * (image.width // 40 + 1) for image in rows]}


class InklingTextProcessor(InklingProcessor):
    """Transformers' own processor, with these patches."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """Transformers takes its own parts only."""


INKLING = [
    f"<|{name}|>"
    for name in (
        *("audio_end", "content_audio_input", "content_image", "content_invoke_tool_json", "content_invoke_tool_text"),
        *("content_model_end_sampling", "content_text", "content_thinking", "content_xml", "end_message"),
        *("message_model", "message_system", "message_tool", "message_user", "unused_200053", "unused_200054"),
    )
]


@dataclass(frozen=True)
class ImageFamily:
    """A model family with images."""

    renderer: str
    """The renderer that the gateway must choose."""
    pad: str
    """The token that stands for a piece of an image."""
    processor: Callable[[str], Any]
    """Makes Transformers' processor for a chat template of `template_folders`."""


def _qwen(name: str) -> Any:
    tokenizer = template_folders.make_tokenizer(name)
    made = ImageTextProcessor(
        image_processor=image_processor(), tokenizer=tokenizer, chat_template=tokenizer.chat_template
    )
    made.video_processor = None
    return made


def _gemma(name: str) -> Any:
    tokenizer = template_folders.make_tokenizer(name)
    tokenizer.image_token, tokenizer.boi_token, tokenizer.eoi_token = "<|image|>", "<|image>", "<image|>"
    tokenizer.pad_token = "<pad>"
    tokenizer.image_token_id = tokenizer.convert_tokens_to_ids("<|image|>")
    processor = Gemma4ImageProcessorPil(max_soft_tokens=70)
    return GemmaImageTextProcessor(None, processor, tokenizer, None, chat_template=tokenizer.chat_template)


IMAGE_FAMILIES = {
    "qwen3_vl": ImageFamily("qwen3-vl", "<|image_pad|>", _qwen),
    "qwen3_5_think": ImageFamily("qwen3.5", "<|image_pad|>", _qwen),
    "qwen3_5_nothink": ImageFamily("qwen3.5", "<|image_pad|>", _qwen),
    "qwen3_6": ImageFamily("qwen3.6", "<|image_pad|>", _qwen),
    "qwen3_8": ImageFamily("qwen3.8", "<|image_pad|>", _qwen),
    "gemma4_v5": ImageFamily("gemma4", "<|image|>", _gemma),
}
"""By the name of their chat template."""


def write_family(name: str, folder: Path) -> Path:
    """What the gateway reads of a checkpoint: its tokenizer and its image processor."""
    template_folders.write_folder(name, folder)
    IMAGE_FAMILIES[name].processor(name).image_processor.save_pretrained(folder)
    return folder
