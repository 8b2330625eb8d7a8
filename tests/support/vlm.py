"""A tiny Qwen3-VL of random weights, its tokenizer and processor, made here; and an engine that samples from it.

In tests/, `python -m support.vlm <folder>` writes the model, as a checkpoint that vLLM and Transformers load.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil, Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from support.tokenizers import make_tokenizer

MODEL = "tiny-vlm"
CONTEXT = 2048


def template() -> str:
    """Qwen3-VL's chat template, as TRL ships it."""
    found = find_spec("trl")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "chat_templates" / "qwen3_vl.jinja").read_text()


def make_model(folder: Path) -> Path:
    """Write the checkpoint: 0.7 million random weights, a vocabulary of 436 tokens, 32 × 32 pixels a token."""
    tokenizer = make_tokenizer(str(folder), template(), "qwen3-vl")
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(config(tokenizer)).eval()
    with torch.no_grad():  # random weights give nearly equal logits; these tell images apart
        model.lm_head.weight.mul_(20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor().save_pretrained(folder)
    return folder


def config(tokenizer: Any) -> Qwen3VLConfig:
    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": CONTEXT,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [12, 10, 10], "mrope_interleaved": True,
        },
        "tie_word_embeddings": False,
    }  # fmt: skip
    vision = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 128, "num_position_embeddings": 256,
        "deepstack_visual_indexes": [0, 1],
    }  # fmt: skip
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=False,
    )


def image_processor() -> Any:
    return Qwen2VLImageProcessorPil(
        patch_size=16,
        temporal_patch_size=2,
        merge_size=2,
        size={"shortest_edge": 32 * 32, "longest_edge": 32 * 32 * 64},
    )


class ImageTextProcessor(Qwen3VLProcessor):
    """Transformers' own processor, without the part for videos, which needs torchvision."""

    @classmethod
    def get_attributes(cls) -> list[str]:
        return ["image_processor", "tokenizer"]


def processor() -> Any:
    made = ImageTextProcessor(
        image_processor=image_processor(),
        tokenizer=make_tokenizer(MODEL, template(), "qwen3-vl"),
        chat_template=template(),
    )
    made.video_processor = None
    return made


# Images


def picture(color: str, size: tuple[int, int] = (96, 64), kind: str = "PNG") -> bytes:
    """A file: a gradient, so that no two patches are the same."""
    image = Image.linear_gradient("L").resize(size).convert("RGB")
    image = Image.blend(image, Image.new("RGB", size, color), 0.5)
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _open(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


# The engine


class VlmEngine:
    """Samples from the model, one forward pass a token; `script` is what it says, each token with its real logprob."""

    images = True

    def __init__(self, folder: Path, script: Sequence[str] = ()) -> None:
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = make_tokenizer(MODEL, template(), "qwen3-vl")
        self.requests: list[Any] = []
        self._script = list(script)
        self._processor = image_processor()
        self.media = self.tokenizer.convert_tokens_to_ids(
            ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
        )

    async def sample(self, request: Any) -> AsyncIterator[Any]:
        from agentcore_rl_toolkit.engine.base import Sampled

        self.requests.append(request)
        planned = self._plan()
        inputs = [self._processor(images=[_open(image.png())], return_tensors="np") for image in request.images]
        ids, end = list(request.prompt), self.tokenizer.eos_token_id
        generator = torch.Generator().manual_seed(len(self.requests))
        for _ in range(request.sampling.max_tokens or 64):
            logits = self.logits(ids, inputs)[-1]
            logprobs = logits.log_softmax(-1)
            if planned is not None:
                token = planned.pop(0)
            else:
                logits[self.media] = -torch.inf
                token = int(torch.multinomial(logits.softmax(-1), 1, generator=generator))
            ids.append(token)
            yield Sampled([token], [float(logprobs[token])], "stop" if token == end else None)
            if token == end:
                return
        yield Sampled([], [], "length")

    def _plan(self) -> list[int] | None:
        if not self._script:
            return None
        return [*self.tokenizer.encode(self._script.pop(0), add_special_tokens=False), self.tokenizer.eos_token_id]

    def logits(self, ids: Sequence[int], inputs: Sequence[Any]) -> torch.Tensor:
        """The model's logits for a sequence with these images."""
        more = {}
        if inputs:
            more = {name: torch.cat([torch.as_tensor(one[name]) for one in inputs]) for name in inputs[0]}
            pads = torch.tensor([list(ids)]) == self.model.config.image_token_id
            more["mm_token_type_ids"] = pads.int()
        with torch.no_grad():
            out = self.model(input_ids=torch.tensor([list(ids)]), use_cache=False, **more)
        return out.logits[0]

    async def info(self) -> Any:
        from agentcore_rl_toolkit.engine.base import EngineInfo

        return EngineInfo((MODEL,), CONTEXT)

    async def start(self) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def close(self) -> None: ...


if __name__ == "__main__":
    make_model(Path(sys.argv[1]))
