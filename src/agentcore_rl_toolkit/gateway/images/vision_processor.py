"""What a model sees of an image: the tokens that stand for it in a prompt.

Renderers of `renderers` expand an image to as many placeholder tokens as the model's own image processor does, and call
it for that. The pixels go to the engine, which has its own processor.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...engine.base import PromptImage
from ...errors import RenderFault
from ..call.chat import Message
from ..record.turn import PlacedImage
from .image_file import SessionImage

SIZES = {
    **dict.fromkeys(("qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8"), "image_grid_thw"),
    "gemma4": "num_soft_tokens_per_image",
    "inkling": "num_patches",
}
"""Renderers whose placeholder tokens are those of the engine, one run of equal tokens for each image; and what of the
image processor's answer says how many."""
TRIMMED = ("qwen3.5", "qwen3.6", "qwen3.8")
"""Those whose templates trim the content of a message, where the renderer leaves content with images as it is."""
OBSTACLES = {
    "kimi-k2.5": "its renderer writes one token for each image, where Transformers and vLLM want one for each patch",
    "nemotron-3.5": "its image processor is code of the checkpoint, which the gateway does not run, "
    "and its renderer bridges no images",
    "default": "no renderer knows how many tokens its images have",
}
"""Why the other renderers with images show none."""
MOST_SIZES = 10_000


class VisionProcessor:
    """The image processor of one model. Renderers call it as they call Transformers' image processors."""

    def __init__(self, processor: Any, tokenizer: Any, family: str) -> None:
        self._processor, self._tokenizer = processor, tokenizer
        self._size, self._trims = SIZES[family], family in TRIMMED
        self._sizes: OrderedDict[str, Any] = OrderedDict()
        """Of the last images."""
        self._lock = threading.Lock()
        self._token = -1
        self._marks = re.compile("")

    @property
    def merge_size(self) -> int:
        """How many patches make up one token, in each direction."""
        return int(self._processor.merge_size)

    def __call__(self, images: Sequence[Any], **_: Any) -> Mapping[str, Any]:
        """The size of one image, of which the renderer has a reference. The renderer reads no pixels.

        Pixels take up to 20,000 times as much memory as a file, so those of one image are decoded at a time.
        """
        image: SessionImage = images[0].info["image"]
        with self._lock:
            size = self._sizes.get(image.sha256)
        if size is None:
            size = self.measure(image, image.decode())
        return {self._size: size, "pixel_values": None, "image_position_ids": None}

    preprocess = __call__
    """Inkling's renderer calls it by this name."""

    def measure(self, image: SessionImage, pixels: Any) -> Any:
        """The size that the model's image processor gives an image; remembered."""
        size = np.asarray(self._processor(images=[pixels], return_tensors="np")[self._size])
        with self._lock:
            self._sizes[image.sha256] = size
            if len(self._sizes) > MOST_SIZES:
                self._sizes.popitem(last=False)
        return size

    def equip(self, renderer: Any) -> Any:
        """The same renderer, with this processor."""
        config = renderer.config.model_copy(update={"image_cache_max": 1})  # it would keep pixels
        seeing = type(renderer)(self._tokenizer, config, processor=SimpleNamespace(image_processor=self))
        names = {token: self._tokenizer.decode([token]) for token in seeing.mm_token_type_id_map}
        self._token = next(token for token, kind in seeing.mm_token_type_id_map.items() if kind == 1)
        self._marks = re.compile("|".join(map(re.escape, names.values())))
        return seeing

    def form(self, message: Message, images: Mapping[str, SessionImage]) -> Message:
        """A message with parts in place of markers. Text that spells a media token is broken up: it has no image."""
        content = message.get("content")
        if not isinstance(content, str):
            return message
        if "images" not in message:
            return message | {"content": self._break_marks(content)} if self._marks.search(content) else message
        parts: list[dict[str, Any]] = []
        done, end = 0, len(content)
        if self._trims:
            done, end = end - len(content.lstrip()), len(content.rstrip())
        for place, known in message["images"]:
            image = images[known]
            parts += [{"type": "text", "text": self._break_marks(content[done:place])}] if place > done else []
            parts.append({"type": "image", "image": image.to_reference()})
            done = place + len(image.marker)
        parts += [{"type": "text", "text": self._break_marks(content[done:end])}] if done < end else []
        return message | {"content": parts}

    def _break_marks(self, text: str) -> str:
        return self._marks.sub(lambda found: f"{found[0][:-1]} {found[0][-1]}", text)

    def place(self, ids: array[int], hashes: Sequence[str], start: int = 0) -> tuple[PlacedImage, ...]:
        """Locate the images in new tokens, which begin at position `start` of the prompt; each is one run of tokens."""
        is_image = np.frombuffer(ids, np.uint32) == self._token if ids else np.zeros(0, bool)
        edges = np.flatnonzero(np.diff(is_image.astype(np.int8), prepend=0, append=0)).tolist()
        runs = list(zip(edges[::2], edges[1::2], strict=True))
        if len(runs) != len(hashes):
            raise RenderFault(f"the prompt has tokens for {len(runs)} images, but there are {len(hashes)}")
        return tuple(PlacedImage(start + a, b - a, known) for (a, b), known in zip(runs, hashes, strict=True))

    def prepare(self, placed: Sequence[PlacedImage], images: Mapping[str, SessionImage]) -> tuple[PromptImage, ...]:
        return tuple(PromptImage(*image, self._token, images[image.sha256].to_png) for image in placed)


def find_vision(tokenizer: Any, family: str, renderer: Any, obstacle: str = "") -> tuple[VisionProcessor | None, str]:
    """The processor of a tokenizer's model; or None and, for a vision model, the reason why it sees no images."""
    if not obstacle and family in SIZES:
        try:
            from transformers import AutoImageProcessor

            return VisionProcessor(AutoImageProcessor.from_pretrained(tokenizer.name_or_path), tokenizer, family), ""
        except (ImportError, OSError, ValueError) as error:
            obstacle = f"its image processor can't be loaded: {error}"
    template = tokenizer.chat_template
    # The vocabularies of Qwen's text models have tokens for images too, but their templates have no place for them.
    sees = "image" in str(template) if template else 1 in getattr(renderer, "mm_token_type_id_map", {}).values()
    return None, (obstacle or OBSTACLES.get(family, OBSTACLES["default"])) if sees else ""
