"""Engines sample tokens: the only connection to an inference server.

In: token ids and sampling settings. Out: tokens with logprobs, as they are sampled. Engines refuse to deal with
messages, sessions or trajectories, and report every failure as an `EngineError`.

Imports no other station.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..errors import ConfigError, EngineError
from .base import IDS, Engine, EngineInfo, Routes, Sampled, SampleRequest, Sampling
from .checkpoints import resolve_model

__all__ = [
    "IDS",
    "Engine",
    "EngineError",
    "EngineInfo",
    "Routes",
    "SampleRequest",
    "Sampled",
    "Sampling",
    "open_engine",
    "resolve_model",
]

SERVERS = ("vllm", "vllm-generate", "sglang")
KINDS = (*SERVERS, "tinker", "sagemaker-session", "transformers")


def open_engine(
    spec: str | Sequence[str], *, api_key: str | None = None, tokenizer: Any = None, changeable: bool = False
) -> Engine:
    """The engine that `spec` describes; several, in a list or separated by commas, are replicas.

    `tokenizer` is a Transformers tokenizer for an engine in this process: for JSON schemas and stop strings. With
    `changeable`, a single server is a replica too, so that others can be added.

    >>> open_engine("gpt=4")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    agentcore_rl_toolkit.errors.ConfigError: not an engine: 'gpt=4'
    hint: write it like ...
    """
    named = {f"{kind}={place}": _open(kind, place, api_key, tokenizer) for kind, place in _read_specs(spec)}
    engines = list(named.values())
    from .remote.server import ServerEngine

    if len(engines) == 1 and not (changeable and isinstance(engines[0], ServerEngine)):
        return engines[0]
    from .replicas import Replicas

    return Replicas(engines, names=list(named))


def make_servers(specs: Sequence[str]) -> dict[str, Callable[[], Engine]]:
    """What makes each of these inference servers' engines, by name, for `Replicas.change`."""
    read = _read_specs(specs)
    for kind, place in read:
        if kind not in SERVERS:
            raise ConfigError(f"{kind}={place} can't be a replica", hint=f"give one of {', '.join(SERVERS)}")
    return {f"{kind}={place}": partial(_open, kind, place, None, None) for kind, place in read}


def _read_specs(spec: str | Sequence[str]) -> list[tuple[str, str]]:
    """The kinds and places that a description names."""
    parts = [part.strip() for one in ([spec] if isinstance(spec, str) else spec) for part in one.split(",")]
    kind = ""
    found: list[tuple[str, str]] = []
    for part in parts:
        if part == "trainer":
            found.append((part, ""))
            continue
        named, equals, place = part.partition("=")
        if not equals or "://" in named:
            named, place = kind, part  # the same kind as the one before
        if named not in KINDS or not place:
            raise ConfigError(
                f"not an engine: {part!r}",
                hint=f"write it like vllm=http://localhost:8000; the kinds are {', '.join(KINDS)}, and `trainer`",
            )
        kind = named
        found.append((kind, place))
    return found


def _open(kind: str, place: str, api_key: str | None, tokenizer: Any) -> Engine:
    if kind == "trainer":
        from .channel.channel_engine import ChannelEngine

        return ChannelEngine()
    if kind == "transformers":
        from .transformers import TransformersEngine

        return TransformersEngine(resolve_model(place), name=place, tokenizer=tokenizer)
    if kind == "tinker":
        from .services.tinker import TinkerEngine

        return TinkerEngine(place, api_key=api_key)
    if kind == "sagemaker-session":
        from .services.session_engine import SessionEngine

        return SessionEngine.parse(place)
    if kind == "sglang":
        from .remote.sglang import SglangEngine

        return SglangEngine(place, api_key=api_key)
    from .remote.vllm import VllmEngine

    return VllmEngine(place, mode="generate" if kind == "vllm-generate" else "tokens", api_key=api_key)
