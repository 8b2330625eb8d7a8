"""The JSON that the remote engines share: prompts in; logprobs and expert routes out, each at its own token.

Pure functions. A logprob that is missing, not a number, or of another token becomes None; none ever moves.
"""

from __future__ import annotations

import base64
import io
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import orjson

from ..base import Routes, Sampled, Sampling

T = TypeVar("T")

LOWEST = -9999.0
"""vLLM's number for minus infinity, which JSON can't express."""
_HIGHEST = 1e-3  # 0, but for rounding


def encode(fields: Mapping[str, Any], name: str, ids: array[int]) -> tuple[bytes, ...]:
    """`fields` as JSON with the token ids as the member `name`, in parts because the ids may be long.

    >>> encode({"n": 1}, "prompt", array("I", [5, 6]))
    (b'{"prompt":', b'[5,6]', b',"n":1}')
    """
    numbers = orjson.dumps(np.frombuffer(ids, dtype=np.uint32), option=orjson.OPT_SERIALIZE_NUMPY)
    return b'{"%b":' % name.encode(), numbers, b",%b" % orjson.dumps(fields)[1:]


def decode(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """Typed JSON; it also accepts `NaN` and `Infinity`, which engines do send."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        try:
            return msgspec.convert(json.loads(data), decoder.type)
        except ValueError as e:
            raise msgspec.DecodeError(str(e)) from e


def named_settings(sampling: Sampling, names: Mapping[str, str]) -> dict[str, Any]:
    """The settings that are set, by the server's names for them, with those that both servers write alike."""
    found = ((name, getattr(sampling, ours)) for ours, name in names.items())
    fields = {name: value for name, value in found if value is not None and value != ()}
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    if sampling.logit_bias:
        fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    return fields


def finite(logprobs: list[float | None]) -> list[float | None]:
    """The same, with None for values that can't be logprobs.

    >>> finite([-0.5, None, float("nan"), -9999.0, 3.5])
    [-0.5, None, None, None, None]
    """
    return [x if x is not None and LOWEST < x <= _HIGHEST else None for x in logprobs]


def match_logprobs(ids: Sequence[int], entries: Iterable[tuple[int, float | None]]) -> list[float | None]:
    """Logprobs for `ids`, out of (id, logprob) entries that are too few or too many.

    They are kept from the front, as long as the ids agree; in a run of one id it is unknown which entry is missing.

    >>> match_logprobs([7, 8, 8, 9], [(7, -0.1), (8, -0.2), (9, -0.3)])
    [-0.1, None, None, None]
    """
    kept: list[float | None] = []
    for have, (named, logprob) in zip(ids, entries, strict=False):
        if have != named:
            break
        kept.append(logprob)
    while kept and len(kept) < len(ids) and ids[len(kept) - 1] == ids[len(kept)]:
        kept.pop()
    return finite(kept) + [None] * (len(ids) - len(kept))


def highest(entries: Iterable[tuple[int, float]], count: int) -> dict[int, float]:
    """The `count` most likely of (id, logprob)."""
    return dict(sorted(entries, key=lambda entry: -entry[1])[:count])


def npy_routes(text: str, start: int) -> Routes | None:
    """vLLM's routes: a `.npy` file in base64, of shape tokens × layers × top_k."""
    return _routes(np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False), start)


def int32_routes(text: str, start: int, tokens: int) -> Routes | None:
    """SGLang's routes: plain int32 in base64, for `tokens` tokens."""
    numbers = np.frombuffer(base64.b64decode(text), dtype="<i4")
    if tokens <= 0 or len(numbers) % tokens:
        return None
    return _routes(numbers.reshape(tokens, -1), start)


def _routes(numbers: np.ndarray[Any, Any], start: int) -> Routes | None:
    if not numbers.size:
        return None
    most = int(numbers.max())
    kind = "<u1" if most < 256 else "<u2" if most < 65_536 else "<u4"
    packed = np.ascontiguousarray(numbers, dtype=kind)
    return Routes(start, packed.tobytes(), int(numbers.size // len(numbers)), packed.itemsize)


def merge(parts: list[Sampled]) -> Sampled | None:
    """Parts that arrived together, up to the finish, as one; None if they are empty."""
    whole = Sampled([], [])
    for part in parts:
        _append(whole, part)
        if whole.finish is not None:  # later parts don't belong to this sequence
            break
    return whole if whole.token_ids or whole.finish is not None else None


def _append(whole: Sampled, part: Sampled) -> None:
    whole.token_ids += part.token_ids
    whole.logprobs += part.logprobs
    whole.finish = whole.finish or part.finish
    whole.weight_version = part.weight_version or whole.weight_version
    whole.versions = part.versions or whole.versions
    whole.routes = part.routes or whole.routes
    if part.top_logprobs is not None:
        whole.top_logprobs = (whole.top_logprobs or []) + part.top_logprobs
