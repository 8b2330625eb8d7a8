"""One image: its bytes as the agent sent them, checked before anything else sees them. Pure.

Agents are hostile: the size that a header states is checked before pixels are decoded, and only four decoders run.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image as Pixels

MAX_BYTES = 20 << 20
"""Of one image, encoded."""
MAX_PIXELS = 1 << 24
"""Of one image: 4096 × 4096, 48 MB when decoded."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
DECODED_AT_ONCE = 4
"""Images of all calls together whose pixels are in memory: 0.2 GB each at most, with the processor's copy."""
UNREADABLE = f"only {', '.join(FORMATS)} of at most {MAX_BYTES >> 20} MB and {MAX_PIXELS} pixels are shown"
REFUSED = "the model's image processor refuses its shape"


@dataclass(frozen=True, slots=True)
class SessionImage:
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
        """A few pixels that identify it, unlike any other image's, where its own would take memory."""
        from PIL import Image

        pixels = Image.frombytes("RGB", (11, 1), bytes.fromhex(self.sha256) + b"\0")
        pixels.info = {"image": self}
        return pixels

    def to_png(self) -> bytes:
        """The same pixels in a file without surprises: one frame, no transparency, no metadata."""
        buffer = io.BytesIO()
        with _decoding:
            self.decode().save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()


def read_image(
    source: str, known: Mapping[str, SessionImage], measure: Callable[[SessionImage, Pixels], object]
) -> SessionImage | str:
    """The image in a `data:` URL or in base64 text; or why it is not shown, in words for the model.

    An image that is not among those `known` must decode, and the model's own processor must `measure` it.
    """
    if len(source) > MAX_BYTES * 4 // 3 + 4096:
        return UNREADABLE
    try:
        data = _decode_base64(source)
        image = SessionImage(sha256(data).hexdigest(), data)
    except ValueError:
        return UNREADABLE
    if image.sha256 in known:
        return known[image.sha256]
    with _decoding:
        try:
            pixels = image.decode()
        except Exception:  # PIL raises many kinds for damaged files
            return UNREADABLE
        try:
            measure(image, pixels)
        except Exception:  # whatever a processor raises
            return REFUSED
    return image


def is_inline(source: Any) -> bool:
    """Whether an image's bytes are in the request, rather than behind a URL or a file id."""
    return isinstance(source, str) and (source[:5].lower() == "data:" or ":" not in source[:16])


def _decode_base64(source: str) -> bytes:
    head, comma, text = source.partition(",") if source[:5].lower() == "data:" else ("", "", source)
    if head and not (comma and head.lower().endswith(";base64")):
        raise ValueError("a data: URL without base64")
    return base64.b64decode(text.encode("ascii").translate(_STANDARD, b"\r\n "), validate=True)


_decoding = threading.BoundedSemaphore(DECODED_AT_ONCE)
_STANDARD = bytes.maketrans(b"-_", b"+/")
