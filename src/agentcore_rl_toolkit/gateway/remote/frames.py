"""The answers of batch operations: length-prefixed MessagePack, one frame for each session, with packed arrays. Pure.

A frame is self-contained, so a gateway folds and sends one session after the other, frames of several workers can be
joined, and a reader holds one at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from ...engine.base import IDS
from ...errors import GatewayFault
from ..record.conversation import Transcript
from ..record.trajectory import Fidelity, RouteTable, Row, Trajectories, TurnSpan
from ..record.turn import PlacedImage
from ..wire.json_body import to_encodable

MEDIA = "application/x-msgpack-frames"
MOST_SESSIONS = 256
"""Sessions of one request."""
LONGEST_FRAME = 1 << 30
_PREFIX = 4


class PackedFault(msgspec.Struct, frozen=True):
    """A `GatewayFault` of one session."""

    message: str
    status: int
    code: str
    param: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, fault: GatewayFault) -> PackedFault:
        return cls(fault.message, fault.status, fault.code, fault.param, fault.retry_after)

    def fault(self) -> GatewayFault:
        return GatewayFault(
            self.message, status=self.status, code=self.code, param=self.param, retry_after=self.retry_after
        )


class PackedRow(msgspec.Struct, frozen=True, array_like=True):
    """A `Row` whose arrays are their bytes, little-endian."""

    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    weight: float
    prompt_length: int
    spans: tuple[TurnSpan, ...]
    versions: tuple[tuple[str, int, int], ...]
    routes: tuple[bytes, bytes] | None
    images: tuple[PlacedImage, ...]

    @classmethod
    def of(cls, row: Row) -> PackedRow:
        routes = None if row.routes is None else (row.routes.data.tobytes(), row.routes.known.tobytes())
        ids, mask, logprobs = row.token_ids.tobytes(), row.loss_mask.tobytes(), row.logprobs.tobytes()
        return cls(ids, mask, logprobs, row.weight, row.prompt_length, row.spans, row.versions, routes, row.images)

    def row(self) -> Row:
        """The row; a `ValueError` if its arrays don't fit each other: no trainer may compute with them."""
        ids, mask = array(IDS, self.token_ids), np.frombuffer(self.loss_mask, np.uint8).copy()
        logprobs = np.frombuffer(self.logprobs, np.float32).copy()
        if not len(ids) == len(mask) == len(logprobs):
            raise ValueError(f"a row of {len(ids)} tokens has a mask of {len(mask)} and {len(logprobs)} logprobs")
        if (mask > 1).any() or np.isnan(logprobs[mask == 1]).any():
            raise ValueError("a row trains on tokens without logprobs")
        routes = self._routes(len(ids))
        return Row(ids, mask, logprobs, self.weight, self.prompt_length, self.spans, self.versions, routes, self.images)

    def _routes(self, tokens: int) -> RouteTable | None:
        if self.routes is None:
            return None
        data, known = np.frombuffer(self.routes[0], np.int32), np.frombuffer(self.routes[1], np.uint8)
        if len(known) != tokens or not tokens:
            raise ValueError(f"a row of {tokens} tokens has routes of {len(known)}")
        return RouteTable(data.reshape(tokens, -1).copy(), known.copy())


class PackedTrajectories(msgspec.Struct, frozen=True):
    """`Trajectories`, packed."""

    rows: tuple[PackedRow, ...]
    fidelity: Fidelity
    model_seconds: float
    transcript: Transcript
    images: dict[str, bytes]

    @classmethod
    def of(cls, folded: Trajectories) -> PackedTrajectories:
        rows = tuple(PackedRow.of(row) for row in folded.rows)
        return cls(rows, folded.fidelity, folded.model_seconds, folded.transcript, dict(folded.images))

    def trajectories(self) -> Trajectories:
        rows = tuple(row.row() for row in self.rows)
        return Trajectories(rows, self.fidelity, self.model_seconds, self.transcript, self.images)


class BatchAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch operation's answer for one session: its fault, its URLs, its trajectories, or nothing for a deletion."""

    session_id: str
    fault: PackedFault | None = None
    session: dict[str, Any] | None = None
    trajectories: PackedTrajectories | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(BatchAnswer)


def pack(answer: BatchAnswer) -> bytes:
    """One frame."""
    try:
        data = _ENCODER.encode(answer)
    except (UnicodeEncodeError, OverflowError):  # of what was said; orjson would not take it either
        data = _ENCODER.encode(to_encodable(msgspec.to_builtins(answer, builtin_types=(bytes,))))
    return len(data).to_bytes(_PREFIX, "little") + data


class FrameReader:
    """Joins the pieces of an answer, and gives the frames that are complete."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, piece: bytes) -> Iterator[BatchAnswer]:
        """The answers that `piece` completes; a `ValueError` for malformed bytes."""
        for frame in self.split(piece):
            yield _DECODER.decode(memoryview(frame)[_PREFIX:])

    def split(self, piece: bytes) -> Iterator[bytes]:
        """The frames that `piece` completes, as they came."""
        self._held += piece
        start = 0
        while (end := self._end(start)) is not None:
            yield bytes(memoryview(self._held)[start:end])
            start = end
        del self._held[:start]

    def _end(self, start: int) -> int | None:
        if len(self._held) < start + _PREFIX:
            return None
        size = int.from_bytes(self._held[start : start + _PREFIX], "little")
        if size > LONGEST_FRAME:
            raise ValueError(f"a frame of {size} bytes; at most {LONGEST_FRAME} are read")
        end = start + _PREFIX + size
        return end if len(self._held) >= end else None
