"""A run's seed: each sample of each row gets its own, whichever of them starts first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.rollout import run_rollouts
from support.gateway import gateway
from support.own_runtime import OwnRuntime


def seeds(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[tuple[int | None, int], int | None]:
    """The seeds of the sessions that the gateway opened, by row and sample."""
    opened: dict[str, int | None] = {}
    known = Gateway.open_session_async

    async def open_session_async(self: Gateway, **settings: Any) -> dict[str, Any]:
        opened[settings["session_id"]] = settings.get("seed")
        return await known(self, **settings)

    monkeypatch.setattr(Gateway, "open_session_async", open_session_async)
    runtime = OwnRuntime(lambda payload: json.dumps({"status_code": 200, "rewards": 1}).encode())
    with RolloutClient(runtime, folder, "exp") as client, gateway(ScriptedEngine([])) as running:
        rows = [{"prompt": "hi"}, {"prompt": "hi"}]
        groups = run_rollouts(rows, 3, client=client, gateway=running, keep_dropped=True, **options)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
    monkeypatch.undo()
    return {(rollout.group, rollout.sample): opened[rollout.session_id or ""] for rollout in rollouts}


def test_every_sample_has_its_own_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = seeds(tmp_path / "a", monkeypatch, seed="0/train/1")
    assert len(one) == len(set(one.values())) == 6
    assert None not in one.values()
    assert one == seeds(tmp_path / "b", monkeypatch, seed="0/train/1", max_concurrent_sessions=1)
    assert not set(one.values()) & set(seeds(tmp_path / "c", monkeypatch, seed="0/train/2").values())
    assert set(seeds(tmp_path / "d", monkeypatch).values()) == {None}
