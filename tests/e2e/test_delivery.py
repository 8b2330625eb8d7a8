"""Results find their way back from every kind of store, once each, whatever fails on the way."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.client import delivery
from agentcore_rl_toolkit.client.delivery import Delivery
from agentcore_rl_toolkit.errors import StoreError, StoreForbidden, StoreMisconfigured
from agentcore_rl_toolkit.store import Store, open_store
from support.fault_proxy import FaultProxy, WithoutListBucket
from support.loop import LoopThread, loop_thread
from support.own_runtime import OwnRuntime, completed
from support.runtime import eventually


@dataclass
class Inbox:
    """What was delivered, by key."""

    delivered: Counter[str] = field(default_factory=Counter)
    documents: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)

    def receiver(self, key: str) -> Callable[[dict[str, Any] | None, Exception | None], None]:
        def receive(document: dict[str, Any] | None, error: Exception | None) -> None:
            self.delivered[key] += 1
            self.documents[key] = document
            if error is not None:
                self.errors[key] = error

        return receive


@dataclass
class Setup:
    threads: LoopThread
    delivery: Delivery
    writer: Store
    inbox: Inbox

    def expect(self, *keys: str) -> None:
        async def all_of_them() -> None:
            for key in keys:
                self.delivery.expect(key, self.inbox.receiver(key))

        self.threads.run(all_of_them())

    def put(self, key: str, *, announce: bool = True) -> None:
        self.writer.put_if_absent(key, json.dumps({"key": key}).encode())
        if announce:
            self.writer.announce(key)


async def make(store: Store) -> Delivery:
    return Delivery(store, "exp")


@pytest.fixture(params=["directory", "s3 and sqs", "s3 alone"])
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    queue = None
    name = str(tmp_path)
    if request.param != "directory":
        aws = request.getfixturevalue("aws_env")
        name = aws.new_bucket()
        queue = aws.new_queue() if request.param == "s3 and sqs" else None
    with loop_thread() as threads:
        made = threads.run(make(open_store(name, sqs_url=queue)))
        writer = open_store(name, sqs_url=queue)
        yield Setup(threads, made, writer, Inbox())
        threads.run(made.close())
        writer.close()


def test_results_are_delivered_once(setup: Setup) -> None:
    keys = [f"exp/row-{n}/s.json" for n in range(30)]
    setup.expect(*keys)
    for key in keys:
        setup.put(key)
        setup.writer.announce(key)  # twice: readers must not mind
    eventually(lambda: len(setup.inbox.delivered) == 30)
    setup.threads.run(setup.delivery.look())
    assert set(setup.inbox.delivered.values()) == {1}
    assert all(setup.inbox.documents[key] == {"key": key} for key in keys)


def test_what_was_there_before_is_found(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Delivery, "announced_interval", 0.5)  # nothing announces it: it is found by looking
    setup.put("exp/row/early.json", announce=False)
    setup.expect("exp/row/early.json")
    eventually(lambda: setup.inbox.delivered["exp/row/early.json"] == 1)


def test_what_is_not_waited_for_is_left_alone(setup: Setup) -> None:
    setup.expect("exp/row/mine.json", "exp/row/forgotten.json")
    setup.threads.run(forget(setup.delivery, "exp/row/forgotten.json"))
    for name in ("theirs", "forgotten", "mine"):
        setup.put(f"exp/row/{name}.json")
    eventually(lambda: setup.inbox.delivered)
    setup.threads.run(setup.delivery.look())
    assert setup.inbox.delivered == {"exp/row/mine.json": 1}


async def forget(delivery: Delivery, key: str) -> None:
    delivery.forget(key)


def test_a_result_that_cannot_be_read_is_an_error_not_a_silence(setup: Setup) -> None:
    setup.expect("exp/row/bad.json", "exp/row/list.json")
    for key, data in (("exp/row/bad.json", b"{half"), ("exp/row/list.json", b"[1]")):
        setup.writer.put_if_absent(key, data)
        setup.writer.announce(key)
    eventually(lambda: len(setup.inbox.errors) == 2)
    assert all(isinstance(error, StoreError) for error in setup.inbox.errors.values())


def test_one_listing_replaces_many_reads(setup: Setup) -> None:
    keys = [f"exp/row-{n}/s.json" for n in range(50)]
    setup.expect(*keys)
    setup.threads.run(setup.delivery.look())
    asked = Counter({name: n for name, n in setup.delivery.store.usage.items() if name.startswith("s3:")})
    assert set(asked) <= {"s3:ListObjectsV2"}  # nothing is there: a listing says so for all of them
    assert asked.total() < len(keys) / 2  # one a look; on a slow machine the delivery has looked by itself meanwhile


def test_the_store_may_fail(aws_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = aws_env.new_bucket()
    writer = open_store(bucket, environ=aws_env.env)
    with FaultProxy(aws_env.s3_url, rate=0.3, seed=3).serving() as proxy, loop_thread() as threads:
        environ = aws_env.env | {"AWS_ENDPOINT_URL_S3": proxy.url}
        setup = Setup(threads, threads.run(make(open_store(bucket, environ=environ))), writer, Inbox())
        keys = [f"exp/row-{n}/s.json" for n in range(100)]
        setup.expect(*keys)
        proxy.down = True
        for key in keys:
            setup.put(key)
        eventually(lambda: proxy.counts["down"] > 0, 60)
        proxy.down = False
        eventually(lambda: len(setup.inbox.delivered) == 100, 60)
        assert set(setup.inbox.delivered.values()) == {1}
        assert setup.inbox.errors == {}
        threads.run(setup.delivery.close())
    writer.close()


# What is wrong with the store, as the user of a client notices it


def test_without_permission_to_list_every_result_is_found(
    aws_env: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = aws_env.new_bucket()
    with WithoutListBucket(aws_env.s3_url).serving() as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
        with RolloutClient(OwnRuntime(after(1.0)), bucket, "exp") as client:
            items = list(client.run_batch([{"n": n} for n in range(4)], timeout=30))
            assert proxy.counts["missing"] > 0
            assert proxy.counts["listed"] == 1
            with pytest.raises(StoreForbidden, match="hint: allow s3:ListBucket; resume"):
                list(client.run_batch([{}], timeout=30, resume=True))
    assert [item.error for item in items] == [None] * 4
    assert caplog.text.count("hint: allow s3:ListBucket") == 1


def after(seconds: float) -> Callable[[dict[str, Any]], Any]:
    async def result(payload: dict[str, Any]) -> bytes:
        await asyncio.sleep(seconds)
        return completed(payload)

    return result


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({}, "create the bucket, or name another store"),
        ({"AWS_ACCESS_KEY_ID": "unknown"}, "aws sts get-caller-identity"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "aws sts get-caller-identity"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "set AWS credentials"),
        ({"AWS_PROFILE": "nobody"}, "set AWS credentials|set AWS_REGION and credentials"),
    ],
)
def test_a_store_that_can_not_work_is_one_error_and_no_rollout(
    aws_env: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], hint: str
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/no/such/file")
    for name, value in changes.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    runtime = OwnRuntime()
    with RolloutClient(runtime, "no-such-bucket-here", "exp") as client:
        with pytest.raises(StoreMisconfigured, match=hint):
            list(client.run_batch([{}] * 3, timeout=30))
        with pytest.raises(StoreMisconfigured, match=hint):
            client.invoke({})
    assert runtime.invoked == []


def test_a_bucket_that_is_deleted_in_the_middle_ends_the_batch(aws_env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PATIENCE", 0.1)
    bucket = aws_env.new_bucket()
    runtime = OwnRuntime(lambda payload: None)
    with RolloutClient(runtime, bucket, "exp") as client, concurrent.futures.ThreadPoolExecutor(1) as other:
        items = other.submit(list, client.run_batch([{}] * 20, 3))
        eventually(lambda: len(runtime.invoked) == 3)
        aws_env.client("s3").delete_bucket(Bucket=bucket)
        with pytest.raises(StoreMisconfigured, match="create the bucket, or name another store"):
            items.result(60)
        eventually(lambda: sorted(runtime.stopped) == sorted(runtime.invoked))
    assert len(runtime.invoked) == 3
