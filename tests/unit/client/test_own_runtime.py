"""A client with a runtime that its user brings along."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentcore_rl_toolkit import RolloutClient, open_store
from agentcore_rl_toolkit.runtime import CommandEvent, Invocation
from agentcore_rl_toolkit.types import RolloutId


class OwnRuntime:
    """Runs no agent: every rollout is done at once."""

    def __init__(self, arn: str) -> None:
        self.arn = arn
        self.stopped: list[str] = []
        self.closed = False

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Invocation:
        settings = json.loads(payload)["_rollout"]
        key = RolloutId(settings["exp_id"], settings["input_id"], session_id).result_key
        store = open_store(settings["s3_bucket"])
        store.put_if_absent(key, json.dumps({"status_code": 200, "rewards": [1.0]}).encode())
        store.announce(key)
        return Invocation(session_id, 200, content_type, one({"status": "processing", "result_key": key}))

    async def stop(self, session_id: str) -> None:
        self.stopped.append(session_id)

    async def command(self, session_id: str, command: str, *, timeout: int = 300) -> AsyncIterator[CommandEvent]:
        yield CommandEvent(exit_code=0, status="COMPLETED")

    async def aclose(self) -> None:
        self.closed = True


async def one(answer: dict[str, str]) -> AsyncIterator[bytes]:
    yield json.dumps(answer).encode()


def test_a_runtime_in_place_of_an_arn_is_used_and_left_open(tmp_path: Path) -> None:
    runtime = OwnRuntime("arn:of:my:own")
    with RolloutClient(runtime, tmp_path, "exp") as client:
        future = client.invoke({"prompt": "hi"})
        assert future.result(timeout=30)["rewards"] == [1.0]
    assert runtime.stopped == [future.session_id]
    assert not runtime.closed


@pytest.mark.parametrize(("region", "limit"), [("ray", math.inf), ("local", math.inf), ("us-west-2", 25)])
def test_only_on_aws_has_a_runtime_its_quota(tmp_path: Path, region: str, limit: float) -> None:
    runtime = OwnRuntime(f"arn:aws:bedrock-agentcore:{region}:000000000000:runtime/own")
    with RolloutClient(runtime, tmp_path, "exp") as client:
        client.invoke({}).result(timeout=30)
        assert client._core._pacer is not None
        assert client._core._pacer._limit == limit
