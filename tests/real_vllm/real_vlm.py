"""What only a real vLLM can show of images: its logprobs are those of Transformers, given the row and its images alone.

`run.py` boots the server. To run it against a server of your own, on a GPU for instance:

    (cd tests && python -m support.vlm /tmp/vlm)
    vllm serve /tmp/vlm --served-model-name tiny-vlm --dtype float32 --max-model-len 1024 --enforce-eager
    AGENTCORE_RL_TEST_VLM=http://127.0.0.1:8000 AGENTCORE_RL_TEST_VLM_FOLDER=/tmp/vlm pytest tests/real_vllm/real_vlm.py

Newer servers also need `--enable-scale-out`; with VLLM_SERVER_DEV_MODE=1 the caches are dropped as well. A GPU needs
a larger AGENTCORE_RL_TEST_VLM_TOLERANCE (the default is 0.0001), because its kernels round differently.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from agentcore_rl_toolkit.engine.remote.vllm import VllmEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.vlm import VlmEngine, data_url, picture, processor

URL = os.environ["AGENTCORE_RL_TEST_VLM"]
FOLDER = Path(os.environ["AGENTCORE_RL_TEST_VLM_FOLDER"])
TOLERANCE = float(os.environ.get("AGENTCORE_RL_TEST_VLM_TOLERANCE", "0.0001"))
CACHES = ("reset_mm_cache", "reset_encoder_cache", "reset_prefix_cache")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["tokens", "generate"])
def test_a_session_with_images_has_the_logprobs_of_transformers(mode: str, stream: bool) -> None:
    local, read = VlmEngine(FOLDER), processor().image_processor
    banned = {str(token): -100 for token in local.media}
    with Gateway(VllmEngine(URL, mode=mode), tokenizer=str(FOLDER)) as gateway:
        session = gateway.open_session(enforced={"logit_bias": banned})
        messages: list[Any] = [_user("orange", (96, 64)), _user("purple", (64, 96))]
        for color in ("cyan", "orange", "pink"):
            messages += [_ask(session, messages, stream), _user(color, (64, 96))]
            for cache in CACHES if color == "orange" else ():
                httpx.post(f"{URL}/{cache}")
        _ask(session, messages, stream)
        known = gateway.trajectories(session["session_id"])
    (row,) = known.rows
    assert (known.fidelity.trained, known.fidelity.bridges) == (known.fidelity.sampled, 3)
    assert len(row.images) == 5
    inputs = [read(images=[_open(known.images[image.sha256])], return_tensors="np") for image in row.images]
    ids, trained = torch.tensor(row.token_ids.tolist()), row.loss_mask.astype(bool)
    logprobs = local.logits(row.token_ids.tolist(), inputs).log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0].numpy()
    worst = float(np.abs(logprobs[trained[1:]] - row.logprobs[trained]).max())
    print(f"{mode}, stream={stream}: {known.fidelity.trained} tokens, {worst:.1e} from Transformers")  # noqa: T201
    assert worst < TOLERANCE


def _ask(session: dict[str, Any], messages: list[Any], stream: bool) -> dict[str, Any]:
    """One call; the assistant's message."""
    body = {"messages": messages, "max_tokens": 12, "temperature": 1.0, "seed": 3, "stream": stream}
    response = httpx.post(f"{session['base_url']}/chat/completions", json=body, timeout=300)
    response.raise_for_status()
    if not stream:
        return {"role": "assistant", "content": response.json()["choices"][0]["message"]["content"]}
    events = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: {")]
    choices = [choice for event in events for choice in httpx.Response(200, text=event).json()["choices"]]
    return {"role": "assistant", "content": "".join(choice["delta"].get("content") or "" for choice in choices)}


def _user(color: str, size: tuple[int, int]) -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": data_url(picture(color, size))}}
    return {"role": "user", "content": [{"type": "text", "text": "what is "}, image, {"type": "text", "text": "?"}]}


def _open(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))
