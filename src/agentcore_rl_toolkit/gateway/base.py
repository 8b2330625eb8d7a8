"""What rollouts need of a gateway, wherever it runs: `RolloutGateway`.

`gateway.py` runs one in this process, `remote/` reaches one elsewhere or starts one in processes beside this one. One
suite (`tests/contract/test_gateway.py`) runs against all three.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..engine.base import EngineLoad
from .record.trajectory import Trajectories
from .render.capabilities import Abilities

ADMIN_KEY = "AGENTCORE_RL_ADMIN_KEY"
"""The environment variable with a gateway's admin key."""
METRIC = "agentcore_rl_gateway_"
"""What the name of every counter begins with."""


class RolloutGateway(Protocol):
    """A running gateway. Every method may be called from any thread, and raises `GatewayFault` if it is refused."""

    @property
    def url(self) -> str:
        """The gateway's address."""

    @property
    def model(self) -> str | None:
        """The engine's first model; None if it has not said which it has."""

    @property
    def abilities(self) -> Abilities:
        """Which renderer was chosen for the tokenizer, and what it can bridge."""

    def open_session(self, **settings: Any) -> dict[str, Any]:
        """Open a session, with the settings of `POST /sessions` (`enforced` among them); gives its id and URLs."""

    async def open_session_async(self, **settings: Any) -> dict[str, Any]: ...

    def trajectories(self, session_id: str) -> Trajectories:
        """A session's turns so far, folded into training rows."""

    async def trajectories_async(self, session_id: str) -> Trajectories: ...

    def delete_session(self, session_id: str) -> None:
        """Close a session and forget its turns."""

    async def delete_session_async(self, session_id: str) -> None: ...

    def pause(self) -> None:
        """Hold back new calls; agents wait."""

    def drain(self) -> None:
        """Wait until nothing is being sampled; `pause` first."""

    def resume(self, weight_version: str | None = None) -> None:
        """Let calls sample again, under a new weight version if one is given."""

    def metrics(self) -> dict[str, int]:
        """The counters of `GET /metrics`, by name."""

    async def engine_loads_async(self) -> dict[str, EngineLoad]:
        """How busy each engine is, by name; only those that tell it."""
