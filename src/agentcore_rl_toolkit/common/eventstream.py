"""Writes frames of `application/vnd.amazon.eventstream`, the format in which AWS streams events.

    total length (4) │ headers length (4) │ CRC of these 8 (4) │ headers │ payload │ CRC of everything before (4)

The local runtime and the gateway write these frames, and boto3 reads them. Headers are strings only, because the
services send no others.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from zlib import crc32

from ..errors import RuntimeFault

CONTENT_TYPE = "application/vnd.amazon.eventstream"
"""The content type of a response made of such frames."""

MAX_PAYLOAD = 16 * 1024 * 1024
"""The most bytes one frame may carry; a longer output has to be cut into several."""

_STRING = 7


def encode_event(event_type: str, payload: bytes) -> bytes:
    """One frame with an event; `event_type` is the name of the member in the service model's stream.

    >>> len(encode_event("chunk", b'{"contentStart":{}}'))
    110
    """
    return _frame({":message-type": "event", ":event-type": event_type, ":content-type": "application/json"}, payload)


def encode_exception(exception_type: str, message: str) -> bytes:
    """One frame that ends the stream with an error, named by its code (`ThrottlingException`).

    On the wire its name is that of the stream's member: the code with a lower-case first letter. boto3 reads a frame
    with any other name as an error without code and message.
    """
    member = exception_type[:1].lower() + exception_type[1:]
    headers = {":message-type": "exception", ":exception-type": member, ":content-type": "application/json"}
    return _frame(headers, json.dumps({"message": message}).encode())


def _frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD:
        raise RuntimeFault(
            f"an event of {len(payload)} bytes does not fit into a frame, which holds {MAX_PAYLOAD}",
            hint="cut the output into several events",
        )
    head = b"".join(_header(name, value) for name, value in headers.items())
    lengths = struct.pack("!II", len(head) + len(payload) + 16, len(head))
    body = lengths + struct.pack("!I", crc32(lengths)) + head + payload
    return body + struct.pack("!I", crc32(body))


def _header(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return struct.pack("!B", len(key)) + key + struct.pack("!BH", _STRING, len(text)) + text


KEEP_ALIVE = encode_event("keepAlive", b"{}")
"""A frame without content, to keep a connection open: clients ignore events that they don't know."""
