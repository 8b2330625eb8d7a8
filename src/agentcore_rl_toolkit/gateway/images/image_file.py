"""One image: its bytes as the agent sent them, checked before anything else sees them. Pure.

Agents are hostile: the size that a header states is checked before pixels are decoded, and only four decoders run.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ...errors import GatewayFault

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels

MAX_BYTES = 20 << 20
"""Of one image, encoded."""
MAX_PIXELS = 1 << 24
"""Of one image: 4096 × 4096, 48 MB when decoded."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


@dataclass(frozen=True, slots=True)
class SessionImage:
    """An image of a session."""

    sha256: str
    """Of `data`, in hexadecimal."""
    data: bytes = field(repr=False)
    """The file, as the agent sent it."""

    @property
    def marker(self) -> str:
        """The text that stands for it in the content of a canonical message."""
        return f"[image {self.sha256}]"

    def decode(self) -> Pixels:
        """Its pixels as RGB, turned the way its EXIF data says: as Transformers loads images."""
        from PIL import Image, ImageOps

        with Image.open(io.BytesIO(self.data), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"it has {width} × {height} pixels; at most {MAX_PIXELS} are read")
            pixels = ImageOps.exif_transpose(opened).convert("RGB")
        pixels.info = {}
        return pixels

    def to_reference(self) -> Pixels:
        """A few pixels that name it, where its own would take memory: no other image's are the same."""
        from PIL import Image

        pixels = Image.frombytes("RGB", (11, 1), bytes.fromhex(self.sha256) + b"\0")
        pixels.info = {"image": self}
        return pixels

    def to_png(self) -> bytes:
        """The same pixels in a file without surprises: one frame, no transparency, no metadata."""
        buffer = io.BytesIO()
        self.decode().save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()


def read_image(source: Any, where: str, known: Mapping[str, SessionImage]) -> SessionImage:
    """The image in a `data:` URL or in base64 text, once it is known to decode; one of those `known` if it is there."""
    data = _decode_base64(source, where)
    image = SessionImage(sha256(data).hexdigest(), data)
    if image.sha256 in known:
        return known[image.sha256]
    try:
        image.decode()
    except Exception as error:  # PIL raises many kinds for damaged files
        raise _invalid(f"{where} has an image that can't be read: {error}") from None
    return image


def is_inline(source: Any) -> bool:
    """Whether an image's bytes are in the request, rather than behind a URL or a file id."""
    return isinstance(source, str) and (source[:5].lower() == "data:" or ":" not in source[:16])


def _decode_base64(source: str, where: str) -> bytes:
    head, comma, text = source.partition(",") if source[:5].lower() == "data:" else ("", "", source)
    if head and not (comma and head.lower().endswith(";base64")):
        raise _invalid(f"{where} has an image in a data: URL without base64")
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise _invalid(f"{where} has an image of about {len(text) * 3 // 4 >> 20} MB; at most {MAX_BYTES >> 20} MB")
    try:
        return base64.b64decode(text.encode("ascii").translate(_STANDARD, b"\r\n "), validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise _invalid(f"{where} has an image that is not base64: {error}") from None


_STANDARD = bytes.maketrans(b"-_", b"+/")


def _invalid(message: str) -> GatewayFault:
    hint = f"send {', '.join(FORMATS)} as base64, of at most {MAX_PIXELS} pixels"
    return GatewayFault(message, status=400, code="invalid_image", param="messages", hint=hint)
