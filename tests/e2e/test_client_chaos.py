"""A batch while the ways to the runtime and to the store fail in every way we know: each rollout counts once."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.runtime.local import AgentSource, LocalRuntime, SessionPolicy
from agentcore_rl_toolkit.types import Status
from support.agent import PROLOGUE
from support.fault_proxy import MORE_FAULTS, FaultProxy
from support.runtime import eventually

AGENT = (
    PROLOGUE
    + """
@app.rollout_entrypoint
def invoke_agent(payload):
    time.sleep(payload["n"] % 5 / 20)
    if payload["n"] % 50 == 49:
        raise ValueError("broken on purpose")
    return {"rewards": 1.0, "n": payload["n"]}
"""
)
# The whole rehearsal, 2000 rollouts and an outage of 30 s, takes minutes: CHAOS=2000 runs it.
ROLLOUTS = int(os.environ.get("CHAOS", "60"))
OUTAGE_SECONDS, AT_ONCE = (30, 48) if ROLLOUTS >= 2000 else (3, 16)


@pytest.mark.timeout(600)
def test_rollouts_through_failing_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rl_app.py").write_text(AGENT)
    # A request that arrives twice may start a session again after it was stopped; then it idles out.
    agent = AgentSource.parse(tmp_path / "rl_app.py", policy=SessionPolicy(idle_timeout=5))
    runtime = LocalRuntime(agent, max_sessions=100)
    with (
        runtime,
        FaultProxy(
            f"http://127.0.0.1:{runtime.port}", rate=0.2, seed=1, faults=MORE_FAULTS, hang=2, throttled=3
        ).serving() as way,
        FaultProxy(f"http://127.0.0.1:{runtime.port}", rate=0.1, seed=2, faults=MORE_FAULTS).serving() as store,
    ):
        settings = {
            "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": way.url,
            "AWS_ENDPOINT_URL_S3": store.url,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "us-west-2",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)

        def outage() -> None:
            way.down = store.down = True
            time.sleep(OUTAGE_SECONDS)
            way.down = store.down = False

        with RolloutClient(runtime.arn, "results", "exp", max_pool_connections=64) as client:
            items = []
            for item in client.run_batch([{"n": n} for n in range(ROLLOUTS)], AT_ONCE, timeout=120, max_retries=5):
                items.append(item)
                if len(items) == ROLLOUTS // 4:
                    threading.Thread(target=outage, daemon=True).start()
        eventually(lambda: runtime.sessions == [], 30)
    assert Counter(item.index for item in items) == Counter(range(ROLLOUTS))
    by_status = Counter(item.status for item in items)
    for item in items:
        if item.index % 50 == 49:
            assert (item.success, item.status) == (False, Status.AGENT_ERROR), item
        elif item.success:
            assert item.result is not None
            assert item.result["n"] == item.index
        else:
            assert item.error, item
    assert by_status[Status.COMPLETED] >= 0.98 * ROLLOUTS * 49 / 50, by_status
    for fault in MORE_FAULTS:
        assert way.counts[fault] > 0, way.counts
    assert (way.counts["hang"], way.counts["throttled"]) == (2, 3)
    assert way.counts["down"] > 0


@pytest.mark.timeout(300)
def test_more_rollouts_at_once_than_the_runtime_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends a session must not wait behind those that want one, and being full must not slow the client down."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "rl_app.py").write_text(AGENT)
    agent = AgentSource.parse(tmp_path / "agent" / "rl_app.py")
    runtime = LocalRuntime(agent, max_sessions=3, stores=[tmp_path / "results"])
    with runtime:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", f"http://127.0.0.1:{runtime.port}")
        with RolloutClient(runtime.arn, tmp_path / "results", "exp", max_pool_connections=24) as client:
            began = time.monotonic()
            items = list(client.run_batch([{"n": n} for n in range(24)], 24, timeout=60))
            seconds = time.monotonic() - began
        eventually(lambda: runtime.sessions == [])
        counts = runtime.counts
    assert Counter(item.status for item in items) == {Status.COMPLETED: 24}
    assert counts["started"] == 24
    # Those that asked before anybody knew, a few at the start, and from then on at most one try a second.
    assert counts["refused"] <= 21 + 12 + seconds
