"""What a runtime stores for rollouts whose session ended before they did."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit.runtime.hosting.pending_rollouts import PendingRollouts
from agentcore_rl_toolkit.store import open_store
from agentcore_rl_toolkit.types import LARGEST_RESULT
from support.agent import rollout

SESSION = str(uuid.uuid4())


def lost(store: Path, *payloads: dict[str, Any], reason: str = "it ended", **environ: str) -> list[dict[str, Any]]:
    """Add the requests, lose the session, and return the stored documents."""
    rollouts = PendingRollouts()
    for payload in payloads:
        assert rollouts.add(payload, SESSION) is not None
    asyncio.run(rollouts.report_lost(reason, environ))
    return [json.loads(path.read_bytes()) for path in sorted(store.rglob("*.json"))]


def test_secrets_that_only_the_app_knows_of_are_not_stored(tmp_path: Path) -> None:
    """`secret_keys` may be written in the agent's code, which a runtime doesn't read."""
    settings = rollout(tmp_path, model_id="m", sampling_params={"temperature": 0.5}, vault="open-sesame", pin=[1, 2])
    (document,) = lost(tmp_path, {"prompt": "say open-sesame", "_rollout": settings}, reason="it said open-sesame")
    assert document["payload"] == {
        "prompt": "say ***",
        "_rollout": rollout(tmp_path, model_id="m", sampling_params={"temperature": 0.5}, vault="***", pin="***"),
    }
    assert document["stop_reason"] == "SessionLost: it said ***"
    assert "open-sesame" not in json.dumps(document)


def test_secret_names_of_the_agents_environment_hold(tmp_path: Path) -> None:
    payload = {"password": "open-sesame", "said": "open-sesame!", "_rollout": rollout(tmp_path)}
    (document,) = lost(tmp_path, payload, AGENTCORE_RL_SECRET_KEYS="password, pin")
    assert (document["payload"]["password"], document["payload"]["said"]) == ("***", "***!")


def test_one_that_cannot_be_reported_costs_the_others_nothing(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    documents = lost(
        tmp_path,
        {"deep": deep, "_rollout": rollout(tmp_path, "1")},
        {"_rollout": rollout("no store", "2")},
        {"prompt": "x" * LARGEST_RESULT, "_rollout": rollout(tmp_path, "3")},
        {"_rollout": rollout(tmp_path, "4") | {"sqs_url": 7}},
        {"_rollout": rollout(tmp_path, "5")},
    )
    stored = {document["input_id"]: document["error"]["kind"] for document in documents}
    assert stored == dict.fromkeys("1345", "session_lost")


def test_one_that_can_not_be_announced_is_stored_all_the_same(tmp_path: Path) -> None:
    pending = PendingRollouts()
    pending.add({"_rollout": rollout(tmp_path, "a")}, "session")
    (tmp_path / ".announced").write_text("in the way")
    assert asyncio.run(pending.report_lost("it fell over", {})) == 1
    assert list(open_store(str(tmp_path)).keys()) == ["exp/a/session.json"]
