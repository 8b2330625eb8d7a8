"""Images for vLLM's `/inference/v1/generate`, which takes them in the form that vLLM's own processes pass on.

That form differs between versions and settings (normalized pixels, raw ones), and a wrong one gives wrong logprobs
without an error. So the server itself makes it: its `render` endpoint, asked for a message that is only the image,
answers with it. A server that has an image in its cache needs only the hash; one that has dropped it fails the request.
"""

from __future__ import annotations

import asyncio
import secrets
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import orjson

from ...errors import EngineError
from ..base import PromptImage
from .http_client import HttpClient

RENDER = "/v1/chat/completions/render"
HINT = "images need vLLM 0.20 or newer; newer ones need --enable-scale-out, and the chat template of the model"


class RenderedFeatures(msgspec.Struct):
    kwargs_data: dict[str, list[str | None]] | None = None


class RenderedPrompt(msgspec.Struct):
    token_ids: list[int] = []
    features: RenderedFeatures | None = None


class VllmImages:
    """The images that one server was sent."""

    most_known = 1024
    """How many images the engine remembers to have sent, at most."""
    most_bytes = 1 << 29
    """Bytes of encoded images that are kept, to send them again."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self._encoded: OrderedDict[str, str] = OrderedDict()
        self._bytes = 0
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One for each image that is being rendered: the rollouts of a group send the same one at the same time."""
        self._known: OrderedDict[str, None] = OrderedDict()

    def find_known(self, images: Sequence[PromptImage]) -> set[str]:
        """Those that the server has been sent, and may have dropped again."""
        return {image.sha256 for image in images if image.sha256 in self._known}

    def remember(self, images: Sequence[PromptImage]) -> None:
        """The server has taken these."""
        for image in images:
            self._known[image.sha256] = None
            self._known.move_to_end(image.sha256)
        while len(self._known) > self.most_known:
            self._known.popitem(last=False)

    def forget(self, names: Collection[str]) -> None:
        """The server may have dropped these."""
        for name in names:
            self._known.pop(name, None)

    async def features(self, images: Sequence[PromptImage], known: Collection[str]) -> dict[str, Any]:
        """The `features` of a request; of `known` images only the hashes."""
        return {
            "mm_hashes": {"image": [image.sha256 for image in images]},
            "mm_placeholders": {"image": [{"offset": image.offset, "length": image.length} for image in images]},
            "kwargs_data": {
                "image": [None if image.sha256 in known else await self._encode(image) for image in images]
            },
        }

    async def _encode(self, image: PromptImage) -> str:
        async with self._locks.setdefault(image.sha256, asyncio.Lock()):
            encoded = self._encoded.get(image.sha256)
            if encoded is None:
                encoded = self._encoded[image.sha256] = await self._render(image)
                self._bytes += len(encoded)
                while self._bytes > self.most_bytes and len(self._encoded) > 1:
                    self._bytes -= len(self._encoded.popitem(last=False)[1])
            return encoded

    async def _render(self, image: PromptImage) -> str:
        png = await asyncio.to_thread(lambda: b64encode(image.png()).decode())
        # Under a name that it has not seen, the server gives all of the image rather than a hash.
        part = {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{png}"},
            "uuid": secrets.token_hex(16),
        }
        body = orjson.dumps({"messages": [{"role": "user", "content": [part]}], "max_tokens": 1})
        try:
            with await self._http.post(RENDER, body) as response:
                rendered = msgspec.json.decode(await response.read(), type=RenderedPrompt)
        except EngineError as error:
            if error.status == 404:
                raise self._http.error(f"can't render an image\nhint: {HINT}") from error
            raise
        except msgspec.DecodeError as error:
            raise self._http.error(f"rendered an image to something unexpected: {error}") from error
        return self._check(rendered, image)

    def _check(self, rendered: RenderedPrompt, image: PromptImage) -> str:
        features = rendered.features or RenderedFeatures()
        (encoded, *_) = (features.kwargs_data or {}).get("image") or [None]
        # The server's own placeholder may span the tokens around an image, such as Gemma 4's begin and end.
        length = rendered.token_ids.count(image.token)
        if encoded is None:
            raise self._http.error(f"rendered a message with an image without one\nhint: {HINT}")
        if length != image.length:
            raise self._http.error(
                f"gives an image {length} tokens, and the gateway's tokenizer folder {image.length}"
                "\nhint: both need the same preprocessor_config.json"
            )
        return encoded
