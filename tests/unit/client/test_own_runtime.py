"""A client with a runtime that its user brings along, and with results that nobody could have foreseen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.agent.result import LARGEST_RESULT
from agentcore_rl_toolkit.client.delivery import Delivery
from agentcore_rl_toolkit.client.in_flight import requests_per_second
from agentcore_rl_toolkit.store import open_store
from agentcore_rl_toolkit.types import Status
from support.own_runtime import OwnRuntime, completed


def test_a_runtime_in_place_of_an_arn_is_used_and_left_open(tmp_path: Path) -> None:
    runtime = OwnRuntime()
    with RolloutClient(runtime, tmp_path, "exp") as client:
        future = client.invoke({"prompt": "hi"})
        assert future.result(timeout=30)["rewards"] == [1.0]
    assert runtime.stopped == [future.session_id]
    assert not runtime.closed


@pytest.mark.parametrize(("region", "limit"), [("ray", None), ("local", None), ("us-west-2", 25)])
def test_only_on_aws_has_a_runtime_its_quota(region: str, limit: float | None) -> None:
    arn = f"arn:aws:bedrock-agentcore:{region}:000000000000:runtime/own"
    assert requests_per_second(arn, 25) == limit
    assert requests_per_second(arn, 7) == 7


DELIVERED: dict[str, dict[str, Any]] = {
    "times are numbers": {"_rollout": {"started_at": 1, "finished_at": []}},
    "times are far apart": {
        "_rollout": {"started_at": "0001-01-01T00:00:00", "finished_at": "9999-01-01T00:00:00"},
    },
    "times run backwards": {"_rollout": {"started_at": "9999-01-01", "finished_at": "0001-01-01"}},
    "no times": {"_rollout": [1, 2]},
    "a nested reward": {"rewards": [[[1.0]], [2]]},
    "an endless reward": {"rewards": [0.0] * 200_000},
    "half a character": {"stop_reason": "\ud800", "rewards": 1.0},
}
FAILED: dict[str, Any] = {
    "brackets": b"[" * 200_000,
    "deep": b'{"a":' * 3000 + b"1" + b"}" * 3000,
    "a list": b"[1]",
    "half": b"{half",
    "nothing": b"",
    "not a number": b'{"rewards": NaN}',
    "a huge number": b'{"rewards": ' + b"9" * 10_000 + b"}",
    "bytes": b'{"a": "\xff\xfe"}',
    "a status that is a list": {"status_code": [], "error": [], "stop_reason": {"a": []}},
    "a long reason": {"status_code": 500, "stop_reason": "x" * 20_000_000},
    "a reason that is a list": {"status_code": 500, "stop_reason": [[0] * 100_000]},
    "an odd kind of error": {"status_code": 500, "error": {"kind": {"a": 1}}, "traceback": {"x": 1}},
}


@pytest.mark.parametrize("announces", [True, False])
def test_one_hostile_result_is_one_failed_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announces: bool
) -> None:
    """They come first; whatever looks for results must find the others after them."""
    monkeypatch.setattr(Delivery, "announced_interval", 0.2)

    def result(payload: dict[str, Any]) -> bytes:
        document = (DELIVERED | FAILED).get(payload.get("name", ""))
        if document is None:
            return completed(payload)
        return document if isinstance(document, bytes) else json.dumps({"status_code": 200} | document).encode()

    hostile = [{"name": name} for name in (*FAILED, *DELIVERED)]
    rows = [*hostile, *({"n": n} for n in range(30))]
    with RolloutClient(OwnRuntime(result, announces=announces), tmp_path, "exp") as client:
        items = {item.index: item for item in client.run_batch(rows, 25, timeout=60, max_retries=0)}
    assert sorted(items) == list(range(len(rows)))
    for index, row in enumerate(rows):
        item = items[index]
        assert item.success == (row.get("name") not in FAILED), (row, item.error)
        assert item.success or (item.status is Status.AGENT_ERROR and 0 < len(str(item.error)) < 10_000)


def test_a_result_that_is_too_large_is_one_failed_rollout(tmp_path: Path) -> None:
    """It is not even read: the file has no bytes on disk, and only its size is asked for."""
    store = open_store(str(tmp_path))
    with RolloutClient(OwnRuntime(lambda _: None), tmp_path, "exp") as client:
        future = client.invoke({})
        path = tmp_path / future.result_key
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            file.truncate(LARGEST_RESULT + 1)
        store.announce(future.result_key)
        with pytest.raises(Exception, match=r"is 100,000,001 bytes long; 100,000,000 are read"):
            future.result(timeout=30)
