"""Announcements that nobody wants don't stay for ever."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.store import directory, message_queue, open_store
from agentcore_rl_toolkit.store.message_queue import MessageQueue


def test_a_directory_keeps_what_nobody_wanted_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    store.announce("exp/row/s.json")
    for _ in range(3):
        assert store.announcements("exp", 0, lambda key: False) == []
    assert open_store(str(tmp_path)).announcements("exp", 0, lambda key: True) == ["exp/row/s.json"]
    store.announce("exp/row/t.json")
    assert store.announcements("exp", 0, lambda key: False) == []
    monkeypatch.setattr(directory, "KEPT_SECONDS", 0.0)
    assert store.announcements("exp", 0, lambda key: False) == []
    assert open_store(str(tmp_path)).announcements("exp", 0) == []


class Sqs:
    """A queue with one message, sent so many seconds ago."""

    def __init__(self, seconds: float) -> None:
        self.attributes = {"ApproximateReceiveCount": "1", "SentTimestamp": str(int((time.time() - seconds) * 1000))}
        self.did: list[str] = []

    def receive_message(self, **_: Any) -> dict[str, Any]:
        return {"Messages": [{"Body": "theirs", "ReceiptHandle": "r", "Attributes": self.attributes}]}

    def delete_message_batch(self, **_: Any) -> None:
        self.did.append("deleted")

    def change_message_visibility_batch(self, **_: Any) -> None:
        self.did.append("returned")


@pytest.mark.parametrize(("factor", "did"), [(0.5, "returned"), (1.5, "deleted")])
def test_a_queue_drops_what_nobody_wanted_for_long(factor: float, did: str) -> None:
    sqs = Sqs(message_queue.OLD_SECONDS * factor)
    assert MessageQueue("https://queue/1", lambda: sqs).receive(0, lambda body: None) == []
    assert sqs.did == [did]


def test_a_reader_that_had_to_wait_for_its_turn_polls_as_often_as_before(tmp_path: Path) -> None:
    """On a busy machine a poll takes long without costing much; by a clock, this one would rest for 40 s."""
    store = open_store(str(tmp_path))
    store.announce("exp/theirs/s.json")

    def is_ours(key: str) -> bool:
        if key == "exp/theirs/s.json":
            time.sleep(2)
            store.announce("exp/ours/s.json")
        return key == "exp/ours/s.json"

    began = time.monotonic()
    assert store.announcements("exp", 60, is_ours) == ["exp/ours/s.json"]
    assert time.monotonic() - began < 30
