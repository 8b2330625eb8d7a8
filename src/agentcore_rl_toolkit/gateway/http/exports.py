"""Turns and rows as they are read over HTTP: JSON, or MessagePack with packed arrays; long lists piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import orjson
from aiohttp import web

from ..record.trajectory import Row
from ..record.turn import PLAIN, Turn
from ..wire.json_body import dump

_PACKED = "application/msgpack"
_TURN_NAMES = {"keep": "kept_tokens", "versions": "weight_versions", "uid": "id"}


def wants_packed(request: web.BaseRequest) -> bool:
    """Whether a client would rather have packed arrays."""
    return _PACKED in request.headers.get("Accept", "")


async def send_list(
    request: web.BaseRequest, name: str, items: Iterable[dict[str, Any]], about: dict[str, Any], packed: bool
) -> web.StreamResponse:
    """An object with one long list, sent item by item, so that a large session delays no other request."""
    if packed:
        listed = []
        for item in items:
            listed.append(item)
            await asyncio.sleep(0)
        return web.Response(body=msgspec.msgpack.encode(about | {name: listed}), content_type=_PACKED)
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    head = dump(about)[:-1]
    await response.write(head + (b"," if about else b"") + b'"%s":[' % name.encode())
    first = True
    for item in items:
        data = orjson.dumps(item, option=orjson.OPT_SERIALIZE_NUMPY)
        await response.write(data if first else b"," + data)
        first = False
        await asyncio.sleep(0)
    await response.write(b"]}")
    await response.write_eof()
    return response


def turn_fields(turn: Turn, packed: bool) -> dict[str, Any]:
    return {
        "index": turn.index,
        "parent": turn.parent.index if turn.parent is not None else None,
        "prompt_length": turn.prompt_length,
        "new_prompt_ids": _numbers(turn.delta, packed),
        "sampled_ids": _numbers(turn.sampled, packed),
        "logprobs": _numbers(turn.logprobs, packed),
        **{_TURN_NAMES.get(name, name): getattr(turn, name) for name in PLAIN},
        "images": [list(image) for image in turn.images],
    }


def row_fields(row: Row, packed: bool) -> dict[str, Any]:
    known: dict[str, Any] = {
        "token_ids": _numbers(row.token_ids, packed),
        "loss_mask": _numbers(row.loss_mask, packed),
        "logprobs": _numbers(row.logprobs, packed),
        "weight": row.weight,
        "prompt_length": row.prompt_length,
        "spans": [[span.turn, span.start, span.end, span.trained, span.finish] for span in row.spans],
        "weight_versions": row.versions,
    }
    if row.routes is not None:
        known["routes"] = _numbers(row.routes.data, packed)
        known["routes_known"] = _numbers(row.routes.known, packed)
    if row.images:
        known["images"] = [list(image) for image in row.images]
    return known


def _numbers(values: Any, packed: bool) -> Any:
    """Packed: the bytes as they are, little-endian (ids u32, mask u8, logprobs f32, routes i32). JSON: null for NaN."""
    if packed:
        return values.tobytes()
    return np.frombuffer(values, values.typecode) if hasattr(values, "typecode") and len(values) else np.asarray(values)
