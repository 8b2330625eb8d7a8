"""A runtime that runs no agent: a function says what each rollout's result is, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from agentcore_rl_toolkit import open_store
from agentcore_rl_toolkit.runtime import CommandEvent, Invocation
from agentcore_rl_toolkit.store import Store
from agentcore_rl_toolkit.types import RolloutId

Result = bytes | None | Awaitable["bytes | None"]


def completed(payload: dict[str, Any]) -> bytes:
    return json.dumps({"status_code": 200, "rewards": [1.0]}).encode()


class OwnRuntime:
    """Stores what `result` makes of a payload; None is never a result."""

    def __init__(
        self,
        result: Callable[[dict[str, Any]], Result] = completed,
        *,
        arn: str = "arn:of:my:own",
        announces: bool = True,
        open_store: Callable[[str], Store] = open_store,
    ) -> None:
        self.arn = arn
        self.result, self.announces, self.open_store = result, announces, open_store
        self.invoked: list[str] = []
        self.stopped: list[str] = []
        self.closed = False
        self._stores: dict[str, Store] = {}
        self._working: set[asyncio.Task[None]] = set()

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        self.invoked.append(session_id)
        request = json.loads(payload)
        settings = request["_rollout"]
        key = RolloutId(settings["exp_id"], settings["input_id"], session_id).result_key
        store = self._stores.setdefault(settings["s3_bucket"], self.open_store(settings["s3_bucket"]))
        task = asyncio.get_running_loop().create_task(self._work(store, key, request))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return Invocation(session_id, 200, content_type, one({"status": "processing", "result_key": key}))

    async def _work(self, store: Store, key: str, request: dict[str, Any]) -> None:
        data = self.result(request)
        data = await data if isinstance(data, Awaitable) else data
        if data is not None:
            await asyncio.to_thread(store.put_if_absent, key, data)
            if self.announces:
                await asyncio.to_thread(store.announce, key)

    async def stop(self, session_id: str) -> None:
        self.stopped.append(session_id)

    async def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        yield CommandEvent(exit_code=0, status="COMPLETED")

    async def aclose(self) -> None:
        self.closed = True


async def one(answer: dict[str, str]) -> AsyncIterator[bytes]:
    yield json.dumps(answer).encode()
