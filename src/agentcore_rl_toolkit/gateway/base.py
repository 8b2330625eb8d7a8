"""What rollouts need of a gateway, wherever it runs: `RolloutGateway`.

`gateway.py` runs one in this process, `remote/` reaches one elsewhere or starts one in processes beside this one. One
suite (`tests/contract/test_gateway.py`) runs against all three.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ..common.private_loop import PrivateLoop, new_loop
from ..engine.base import EngineLoad
from .record.trajectory import Trajectories
from .render.capabilities import Abilities

if TYPE_CHECKING:
    from typing import Self

ADMIN_KEY = "AGENTCORE_RL_ADMIN_KEY"
"""The environment variable with a gateway's admin key."""
METRIC = "agentcore_rl_gateway_"
"""What the name of every counter begins with."""


class RolloutGateway(ABC):
    """A gateway. Use it in `with` or `async with`.

    Every method may be called from any thread, and raises `GatewayFault` if it is refused. Its coroutines run on
    the gateway's own loop.
    """

    def __init__(self, name: str) -> None:
        self._loop = PrivateLoop(name, new_loop)

    @property
    @abstractmethod
    def url(self) -> str:
        """The gateway's address."""

    @property
    @abstractmethod
    def model(self) -> str | None:
        """The engine's first model; None if it has not said which it has."""

    @property
    @abstractmethod
    def abilities(self) -> Abilities:
        """Which renderer was chosen for the tokenizer, and what it can bridge."""

    def open_session(self, **settings: Any) -> dict[str, Any]:
        """Open a session, with the settings of `POST /sessions` (`enforced` among them); gives its id and URLs."""
        return self._loop.run(self._open(settings))

    async def open_session_async(self, **settings: Any) -> dict[str, Any]:
        return await self._loop.run_async(self._open(settings))

    def trajectories(self, session_id: str) -> Trajectories:
        """A session's turns so far, folded into training rows."""
        return self._loop.run(self._fold(session_id))

    async def trajectories_async(self, session_id: str) -> Trajectories:
        return await self._loop.run_async(self._fold(session_id))

    def delete_session(self, session_id: str) -> None:
        """Close a session and forget its turns."""
        self._loop.run(self._delete(session_id))

    async def delete_session_async(self, session_id: str) -> None:
        await self._loop.run_async(self._delete(session_id))

    @abstractmethod
    def pause(self) -> None:
        """Hold back new calls; agents wait."""

    @abstractmethod
    def drain(self) -> None:
        """Wait until nothing is being sampled; `pause` first."""

    @abstractmethod
    def resume(self, weight_version: str | None = None) -> None:
        """Let calls sample again, under a new weight version if one is given."""

    @abstractmethod
    def metrics(self) -> dict[str, int]:
        """The counters of `GET /metrics`, by name; those of all workers together."""

    @abstractmethod
    async def engine_loads_async(self) -> dict[str, EngineLoad]:
        """How busy each engine is, by name; only those that tell it."""

    def __enter__(self) -> Self:
        try:
            self._loop.run(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._loop.run(self._stop())
        finally:
            self._loop.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)

    @abstractmethod
    async def _start(self) -> None: ...

    @abstractmethod
    async def _stop(self) -> None:
        """End it, however far it has started."""

    @abstractmethod
    async def _open(self, settings: dict[str, Any]) -> dict[str, Any]: ...

    @abstractmethod
    async def _fold(self, session_id: str) -> Trajectories: ...

    @abstractmethod
    async def _delete(self, session_id: str) -> None: ...
