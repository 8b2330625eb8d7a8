"""What a gateway answers in JSON, checked: an address may lead to anything. Pure."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ...engine.base import EngineLoad
from ...errors import GatewayFault
from ..render.capabilities import Abilities

T = TypeVar("T")


class ToldAbilities(msgspec.Struct, frozen=True):
    """The answer to `GET /abilities`."""

    line: str
    problems: dict[str, str]
    blind: str
    images: bool
    routes: bool
    models: tuple[str, ...]
    wants_engine: bool
    workers: tuple[str, ...]

    def abilities(self) -> Abilities:
        return Abilities(self.line, self.problems, self.blind)


class ToldEngine(msgspec.Struct, frozen=True):
    """One engine of `GET /engines`; it has a load if it tells `kv_used`."""

    name: str
    healthy: bool
    kv_used: float | None = None
    running: int = 0
    waiting: int = 0
    preempted: int = 0

    def load(self) -> EngineLoad | None:
        if self.kv_used is None or not self.healthy:
            return None
        return EngineLoad(self.kv_used, self.running, self.waiting, self.preempted)


class ToldEngines(msgspec.Struct, frozen=True):
    """The answer to `GET /engines`."""

    engines: tuple[ToldEngine, ...]

    def loads(self) -> dict[str, EngineLoad]:
        """The loads of those that tell them, by name."""
        told = {one.name: one.load() for one in self.engines}
        return {name: load for name, load in told.items() if load is not None}


class ToldHealth(msgspec.Struct, frozen=True):
    """The answer to `GET /health`."""

    status: str


class OpenedSession(msgspec.Struct, frozen=True):
    """The fields that the client needs of an opened session."""

    session_id: str
    base_url: str


def read_answer(data: bytes, kind: type[T], url: str) -> T:
    """A gateway's answer.

    >>> read_answer(b'{"engines": [{"name": "vllm=http://a", "healthy": true}]}', ToldEngines, "http://here").loads()
    {}
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = f"{url} is not a gateway of this version: {error}"
        raise GatewayFault(text, status=500, code="not_a_gateway") from None
