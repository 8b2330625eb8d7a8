"""The images of one session, each kept once, within bounds; and the images in the messages of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...errors import GatewayFault
from ..call.chat import Message
from .image_file import SessionImage, is_inline, read_image

MOST_IMAGES = 512
MOST_SHOWN = 512
"""In one call, counting one that is shown twice as two."""
MOST_BYTES = 128 << 20
Measure = Callable[[SessionImage, Any], object]
"""Gives an image and its pixels to the model's image processor."""
_SHOWN_TO = ("user", "tool")
_NOT_SENT = "only images sent as data are shown"


class SessionImages(dict[str, SessionImage]):
    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0
        self.logged: set[str] = set()
        """Those that the log has."""

    def keep(self, image: SessionImage) -> None:
        """Keep an image; refuses one beyond the session's bounds."""
        if image.sha256 in self:
            return
        if len(self) >= MOST_IMAGES or self._bytes + len(image.data) > MOST_BYTES:
            held = f"{len(self)} images of {self._bytes >> 20} MB"
            raise _too_many(f"this session has {held}, and can't hold another of {len(image.data)} bytes")
        self[image.sha256] = image
        self._bytes += len(image.data)

    def restore(self, image: SessionImage) -> None:
        """Keep an image that the log has."""
        self.keep(image)
        self.logged.add(image.sha256)


def _too_many(message: str) -> GatewayFault:
    hint = f"a call shows {MOST_SHOWN} images, a session holds {MOST_IMAGES} of {MOST_BYTES >> 20} MB: send fewer"
    return GatewayFault(message, status=413, code="too_many_images", param="messages", hint=hint)


def has_media(messages: Iterable[Message]) -> bool:
    """Whether a message still has images as the agent sent them."""
    return any("media" in message for message in messages)


def drop_media(messages: Iterable[Message]) -> None:
    """Leave the placeholders, which the messages have already."""
    for message in messages:
        if "media" in message:
            del message["media"]


def take_media(messages: Sequence[Message], images: SessionImages, measure: Measure) -> None:
    """Keep the images of messages, and put their markers in place of the placeholders.

    The model sees images of users and of tools' results. Any other, one behind a URL, and one that can't be read or
    measured leave a placeholder, and the rollout continues.
    """
    count = sum(len(message.get("media", ())) for message in messages)
    if count > MOST_SHOWN:  # each takes thousands of tokens
        raise _too_many(f"messages have {count} images")
    for message in messages:
        if "media" in message:
            media = message.pop("media")
            if message["role"] in _SHOWN_TO:
                _take(message, media, images, measure)


def _take(message: Message, media: list[tuple[int, str, Any]], images: SessionImages, measure: Measure) -> None:
    content, rest, shown = "", message["content"], []
    done = 0
    for place, placeholder, source in media:
        content += rest[done:place]
        done = place + len(placeholder)
        image = read_image(source, images, measure) if is_inline(source) else _NOT_SENT
        if isinstance(image, str):
            content += f"[image omitted: {image}]"
            continue
        images.keep(image)
        shown.append([len(content), image.sha256])
        content += image.marker
    message["content"] = content + rest[done:]
    if shown:
        message["images"] = shown
        _count_shown(message, len(shown))


def _count_shown(message: Message, shown: int) -> None:
    omitted = message["omitted"] | {"image": message["omitted"]["image"] - shown}
    message["omitted"] = {kind: count for kind, count in omitted.items() if count}
    if not message["omitted"]:
        del message["omitted"]


def list_hashes(messages: Iterable[Message]) -> Iterator[str]:
    """The images in messages, in order."""
    for message in messages:
        for _, known in message.get("images", ()):
            yield known
