"""What a model sees of an image: the tokens that stand for it in a prompt.

Renderers of `renderers` expand an image to as many placeholder tokens as the model's own image processor does, and call
it for that. The pixels go to the engine, which has a processor of its own.
"""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)

FAMILIES = ("qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8")
"""Renderers whose placeholder tokens are those of the engine: one run of equal tokens for each image."""
MOST_SIZES = 10_000


class Eyes:
    """The image processor of one model. Renderers call it as they call Transformers' image processors."""

    def __init__(self, processor: Any, tokenizer: Any) -> None:
        self._processor, self._tokenizer = processor, tokenizer
        self._grids: OrderedDict[str, Any] = OrderedDict()
        """Of the last images: their patches, which say how many tokens they have."""
        self._lock = threading.Lock()
        self._token = -1
        self._marks = re.compile("")

    @property
    def merge_size(self) -> int:
        """How many patches make up one token, in each direction."""
        return int(self._processor.merge_size)

    def __call__(self, images: Sequence[Any], **_: Any) -> Mapping[str, Any]:
        """The patches of one image. The renderer needs no more."""
        (pixels,) = images
        known = pixels.info["sha256"]
        with self._lock:
            grid = self._grids.get(known)
        if grid is None:
            grid = np.asarray(self._processor(images=[pixels], return_tensors="np")["image_grid_thw"])
            with self._lock:
                self._grids[known] = grid
                if len(self._grids) > MOST_SIZES:
                    self._grids.popitem(last=False)
        return {"image_grid_thw": grid, "pixel_values": None}

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
        done = 0
        for place, known in message["images"]:
            image = images[known]
            parts += [{"type": "text", "text": self._break_marks(content[done:place])}] if place > done else []
            parts.append({"type": "image", "image": image.decode()})
            done = place + len(image.marker)
        parts += [{"type": "text", "text": self._break_marks(content[done:])}] if done < len(content) else []
        return message | {"content": parts}

    def _break_marks(self, text: str) -> str:
        return self._marks.sub(lambda found: f"{found[0][:-1]} {found[0][-1]}", text)

    def place(self, ids: array[int], hashes: Sequence[str], start: int = 0) -> tuple[PlacedImage, ...]:
        """Where images are in new tokens, which begin at position `start` of the prompt: one run of tokens each."""
        is_image = np.frombuffer(ids, np.uint32) == self._token if ids else np.zeros(0, bool)
        edges = np.flatnonzero(np.diff(is_image.astype(np.int8), prepend=0, append=0)).tolist()
        runs = list(zip(edges[::2], edges[1::2], strict=True))
        if len(runs) != len(hashes):
            raise RenderFault(f"the prompt has tokens for {len(runs)} images, but there are {len(hashes)}")
        return tuple(PlacedImage(start + a, b - a, known) for (a, b), known in zip(runs, hashes, strict=True))

    def prepare(self, placed: Sequence[PlacedImage], images: Mapping[str, SessionImage]) -> tuple[PromptImage, ...]:
        """Images as an engine takes them."""
        return tuple(PromptImage(*image, images[image.sha256].to_png) for image in placed)


def load_eyes(tokenizer: Any, family: str) -> Eyes | None:
    """The eyes of the model that a tokenizer was loaded with; None if it has none that an engine could be given."""
    if family not in FAMILIES:
        return None
    try:
        from transformers import AutoImageProcessor

        return Eyes(AutoImageProcessor.from_pretrained(tokenizer.name_or_path), tokenizer)
    except (ImportError, OSError, ValueError) as error:
        logger.warning("the model reads placeholders for images: its image processor can't be loaded: %s", error)
        return None
