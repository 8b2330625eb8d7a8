"""What every store must do, run against each of them: a directory, and S3 with SQS on real servers."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentcore_rl_toolkit.errors import (
    ConfigError,
    KeyInvalid,
    KeyNotFound,
    ResultUnreadable,
    StoreMisconfigured,
    StoreUnavailable,
)
from agentcore_rl_toolkit.store import Store, open_store
from agentcore_rl_toolkit.types import LARGEST_RESULT

OpenStore = Callable[[], Store]


@pytest.fixture(params=["directory", "file-url", "bucket", "s3-prefix"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens the same store again and again, as different processes would."""
    queue = None
    if request.param == "directory":
        url = str(tmp_path / "results")
    elif request.param == "file-url":
        url = (tmp_path / "results with spaces").as_uri()
    else:
        aws = request.getfixturevalue("aws_env")
        bucket, queue = aws.new_bucket(), aws.new_queue()
        url = bucket if request.param == "bucket" else f"s3://{bucket}/team/run one"
    opened: list[Store] = []

    def open_again() -> Store:
        opened.append(open_store(url, sqs_url=queue))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


@pytest.fixture
def store(opener: OpenStore) -> Store:
    return opener()


def test_what_is_put_can_be_read(store: Store, opener: OpenStore) -> None:
    assert store.put_if_absent("exp/row/s.json", b'{"a":1}') is True
    assert store.get("exp/row/s.json") == b'{"a":1}'
    assert store.exists("exp/row/s.json")
    assert opener().get("exp/row/s.json") == b'{"a":1}'


def test_the_first_put_wins(store: Store, opener: OpenStore) -> None:
    assert store.put_if_absent("exp/row/s.json", b"first") is True
    assert opener().put_if_absent("exp/row/s.json", b"second") is False
    assert store.get("exp/row/s.json") == b"first"


def test_of_many_writers_at_once_one_wins(opener: OpenStore) -> None:
    stores = [opener() for _ in range(8)]
    start = threading.Barrier(8)

    def put(i: int) -> bool:
        start.wait()
        while True:
            try:
                return stores[i].put_if_absent("exp/row/race.json", b"x" * 1000 + bytes([i]))
            except StoreUnavailable:  # S3 may tell the losers of a race to try again
                time.sleep(0.01)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(put, range(8)))
    assert won.count(True) == 1
    assert stores[0].get("exp/row/race.json")[-1] == won.index(True)


def test_a_reader_may_bound_what_it_reads(store: Store) -> None:
    store.put_if_absent("exp/row/s.json", b"x" * 1000)
    assert store.get("exp/row/s.json", limit=1000) == b"x" * 1000
    for limit in (999, 10):
        with pytest.raises(ResultUnreadable, match=rf"exp/row/s\.json.* is 1,000 bytes long; {limit} are read"):
            store.get("exp/row/s.json", limit=limit)


def test_reading_takes_the_memory_of_what_is_there(store: Store) -> None:
    store.put_if_absent("exp/row/s.json", b"x" * 1000)
    tracemalloc.start()
    try:
        store.get("exp/row/s.json", limit=LARGEST_RESULT)
        assert tracemalloc.get_traced_memory()[1] < LARGEST_RESULT // 10
    finally:
        tracemalloc.stop()
    assert store.get("exp/row/s.json") == b"x" * 1000


def test_what_is_not_there(store: Store) -> None:
    assert not store.exists("exp/row/none.json")
    with pytest.raises(KeyNotFound, match=r"exp/row/none\.json"):
        store.get("exp/row/none.json")
    assert list(store.keys()) == []
    assert sorted(store.keys("exp/")) == []


def test_keys_are_found_by_prefix(store: Store) -> None:
    keys = ["a/row-1/s1.json", "a/row-1/s2.json", "a/row-10/s1.json", "a.json", "b/row-1/s1.json", "ab/r/s.json"]
    for key in keys:
        store.put_if_absent(key, b"{}")
    store.announce("a/row-1/s1.json")  # leaves no key behind
    assert sorted(store.keys()) == sorted(keys)
    assert sorted(store.keys("a/")) == ["a/row-1/s1.json", "a/row-1/s2.json", "a/row-10/s1.json"]
    assert sorted(store.keys("a/row-1/")) == ["a/row-1/s1.json", "a/row-1/s2.json"]
    assert sorted(store.keys("a")) == [
        "a.json",
        "a/row-1/s1.json",
        "a/row-1/s2.json",
        "a/row-10/s1.json",
        "ab/r/s.json",
    ]
    assert sorted(store.keys("nothing/here")) == []


@pytest.mark.parametrize("name", ["Grüße", "世界", "a b", "a+b", "a%2Fb", "a:b", "x" * 200, "a?b#c&d=e", "'\"`$(id)"])
def test_unusual_ids_round_trip(store: Store, name: str) -> None:
    key = f"exp/{name}/s.json"
    assert store.put_if_absent(key, b"1")
    assert store.get(key) == b"1"
    assert list(store.keys()) == [key]
    store.announce(key)
    assert store.announcements("exp", 5) == [key]


@pytest.mark.parametrize(
    "key",
    ["", "/etc/passwd", "../up.json", "exp/../../up.json", "exp//s.json", "exp/./s.json", "exp/row/", "/", "..",
     "exp\\..\\up", "exp/\x00/s", "exp/\n/s", ".new/s", ".announced/s", "exp/.hidden", "x" * 300, "a/" * 600 + "a",
     "\ud800"],
)  # fmt: skip
def test_keys_cannot_leave_the_prefix(store: Store, key: str) -> None:
    for call in (lambda: store.put_if_absent(key, b"x"), lambda: store.get(key), lambda: store.exists(key)):
        with pytest.raises(KeyInvalid):
            call()
    with pytest.raises(KeyInvalid):
        store.announce(key)


@pytest.mark.parametrize("prefix", ["../", "/", "exp/../", "..", "a//b"])
def test_prefixes_cannot_either(store: Store, prefix: str) -> None:
    with pytest.raises(KeyInvalid):
        list(store.keys(prefix))


def test_an_announcement_reaches_one_reader_once(store: Store, opener: OpenStore) -> None:
    assert store.announces
    assert store.announcements("exp", 0) == []
    writer, reader = opener(), opener()
    writer.announce("exp/row/s1.json")
    writer.announce("exp/row/s2.json")
    got: list[str] = []
    deadline = time.monotonic() + 10
    while len(got) < 2 and time.monotonic() < deadline:
        got += reader.announcements("exp", 2)
    assert sorted(got) == ["exp/row/s1.json", "exp/row/s2.json"]
    assert store.announcements("exp", 0) == []


def test_a_waiting_reader_is_woken(store: Store, opener: OpenStore) -> None:
    writer = opener()
    timer = threading.Timer(0.3, writer.announce, ["exp/row/s.json"])
    timer.start()
    assert store.announcements("exp", 10) == ["exp/row/s.json"]
    timer.join()


def test_an_experiment_does_not_take_anothers_announcements(store: Store) -> None:
    store.announce("theirs/row/s.json")
    store.announce("team/ours/row/s.json")
    got: list[str] = []
    deadline = time.monotonic() + 10
    while not got and time.monotonic() < deadline:
        got = store.announcements("team/ours", 1)
    assert got == ["team/ours/row/s.json"]


def test_announcements_that_a_reader_does_not_want_are_for_the_others(store: Store, opener: OpenStore) -> None:
    keys = [f"exp/row/s{n}.json" for n in range(6)]
    mine, theirs = set(keys[::2]), set(keys[1::2])
    for key in keys:
        store.announce(key)
    other, got, left = opener(), set[str](), set[str]()
    deadline = time.monotonic() + 10
    while (got != mine or left != theirs) and time.monotonic() < deadline:
        got |= set(store.announcements("exp", 0, mine.__contains__))
        left |= set(other.announcements("exp", 0, theirs.__contains__))
    assert (got, left) == (mine, theirs)


def test_the_stored_of_some_keys_are_found(store: Store) -> None:
    for n in range(30):
        store.put_if_absent(f"exp/row-{n:02}/s.json", b"x")
    there = [f"exp/row-{n:02}/s.json" for n in range(0, 30, 2)]
    missing = [f"exp/row-{n:02}/t.json" for n in range(40)]
    found, unknown = store.find(sorted(there + missing))
    assert found <= set(there) <= found | set(unknown)
    assert store.find([]) == (set(), [])


def test_many_processes_at_once(opener: OpenStore) -> None:
    store = opener()
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        counts = pool.map(_put_all, [(store.url, i) for i in range(4)])
    assert sum(counts) == 20  # 20 distinct keys, each written by all four
    assert len(list(store.keys())) == 20


def _put_all(args: tuple[str, int]) -> int:
    store, won = open_store(args[0]), 0
    for i in range(20):
        while True:
            try:
                won += store.put_if_absent(f"exp/row-{i}/s.json", f"{args[1]}".encode())
                break
            except StoreUnavailable:
                time.sleep(0.02)
    store.close()
    return won


def test_a_store_that_is_down_is_unavailable_not_broken(aws_env: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match=r"exp/row/s\.json"):
        open_store("some-bucket").put_if_absent("exp/row/s.json", b"x")


def test_a_missing_bucket_is_a_setting_to_change(aws_env: object) -> None:
    with pytest.raises(StoreMisconfigured, match="hint: create the bucket"):
        open_store("no-such-bucket-here").put_if_absent("exp/row/s.json", b"x")


def test_wrong_credentials_are_a_setting_to_change(aws_env: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreMisconfigured, match="hint: `aws sts get-caller-identity`"):
        open_store("some-bucket").put_if_absent("exp/row/s.json", b"x")


def test_without_a_queue_s3_announces_nothing(aws_env: object) -> None:
    store = open_store("some-bucket")
    assert not store.announces
    store.announce("exp/row/s.json")
    with pytest.raises(ConfigError, match="sqs_url"):
        store.announcements("exp", 0)


def read(store: Store, exp_id: str, count: int) -> list[str]:
    """`count` announcements, or as many as come within ten seconds."""
    got: list[str] = []
    deadline = time.monotonic() + 10
    while len(got) < count and time.monotonic() < deadline:
        got += store.announcements(exp_id, 1)
    return got


# ---------------------------------------------------------------------------------------------------------------------


def test_an_experiment_inside_another_is_another(store: Store) -> None:
    store.announce("team/ours/row/s.json")
    store.announce("team/row/s.json")
    assert read(store, "team", 1) == ["team/row/s.json"]


# --- announcements on SQS --------------------------------------------------------------------------------------------


@pytest.fixture
def queue(aws_env: Any) -> str:
    return str(aws_env.new_queue())


def waiting(aws: Any, queue: str) -> int:
    """Messages in the queue, those that a reader holds included."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    counts = aws.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
    return sum(int(counts[name]) for name in names)


def test_anothers_announcements_stay_in_the_queue(aws_env: Any, queue: str) -> None:
    store = open_store("some-bucket", sqs_url=queue)
    aws_env.client("sqs").set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "0"})
    store.announce("theirs/row/s.json")
    store.announce("ours/row/s.json")
    assert read(store, "ours", 1) == ["ours/row/s.json"]
    assert waiting(aws_env, queue) == 1
    assert read(store, "theirs", 1) == ["theirs/row/s.json"]
    assert waiting(aws_env, queue) == 0


def s3_event(bucket: str, key: str) -> dict[str, Any]:
    """As S3 itself sends it: blanks are pluses, and bytes are quoted."""
    return {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": key}}}]}


JUNK: list[Any] = [
    "not json",
    "[]",
    "7",
    "null",
    "{}",
    {"Records": "text"},
    {"Records": 7},
    {"Records": [{}]},
    {"Records": [{"s3": None}]},
    {"Records": [{"s3": {"bucket": {"name": "some-bucket"}, "object": {"key": 7}}}]},
    "[" * 100_000,
    {"Event": "s3:TestEvent", "Bucket": "some-bucket"},  # what S3 sends first of all
]


def test_a_message_for_others_is_there_for_them_at_once(aws_env: Any, queue: str) -> None:
    store = open_store("some-bucket", sqs_url=queue)
    aws_env.client("sqs").set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "600"})
    store.announce("exp/row/theirs.json")
    assert store.announcements("exp", 1, lambda key: False) == []
    assert read(open_store("some-bucket", sqs_url=queue), "exp", 1) == ["exp/row/theirs.json"]


def test_a_message_that_nobody_wants_is_hidden_for_longer_and_longer(aws_env: Any, queue: str) -> None:
    store = open_store("some-bucket", sqs_url=queue)
    store.announce("exp/row/nobodys.json")
    for _ in range(20):
        store.announcements("exp", 0, lambda key: False)
    assert store.usage["sqs:ChangeMessageVisibilityBatch"] < 10
    assert waiting(aws_env, queue) == 1


def test_a_reader_that_may_not_return_messages_says_so_once(
    aws_env: Any, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store("some-bucket", sqs_url=queue)
    store.client("sqs").meta.events.register(  # type: ignore[attr-defined]
        "before-call.sqs.ChangeMessageVisibilityBatch", lambda **_: (_ for _ in ()).throw(PermissionError("no"))
    )
    for n in range(3):
        store.announce(f"theirs/row-{n}/s.json")
        store.announcements("exp", 1)
    assert caplog.text.count("hint: allow sqs:ChangeMessageVisibility") == 1


def test_messages_that_are_no_announcements_are_dropped(
    aws_env: Any, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, sqs = open_store("some-bucket", sqs_url=queue), aws_env.client("sqs")
    for body in JUNK:
        sqs.send_message(QueueUrl=queue, MessageBody=body if isinstance(body, str) else json.dumps(body))
    store.announce("exp/row/s.json")
    assert read(store, "exp", 1) == ["exp/row/s.json"]
    while waiting(aws_env, queue):
        assert store.announcements("exp", 0) == []
    assert caplog.text.count("is not an S3 event") == len(JUNK)


def test_s3s_own_notifications_are_announcements(aws_env: Any, queue: str) -> None:
    store, sqs = open_store("s3://some-bucket/team/run one", sqs_url=queue), aws_env.client("sqs")
    event = s3_event("some-bucket", "team/run+one/exp/a+b%2Bc/Gr%C3%BC%C3%9Fe.json")
    sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(event))
    assert read(store, "exp", 1) == ["exp/a b+c/Grüße.json"]


def test_our_announcements_read_like_s3s_own(aws_env: Any, queue: str) -> None:
    open_store("s3://some-bucket/team/run one", sqs_url=queue).announce("exp/a b+c/Grüße.json")
    (message,) = aws_env.client("sqs").receive_message(QueueUrl=queue)["Messages"]
    record = json.loads(message["Body"])["Records"][0]
    assert record["s3"]["bucket"]["name"] == "some-bucket"
    assert record["s3"]["object"]["key"] == "team/run+one/exp/a+b%2Bc/Gr%C3%BC%C3%9Fe.json"


def test_announcements_of_another_store_are_not_taken_for_ours(aws_env: Any, queue: str) -> None:
    for url in ("s3://other-bucket/team", "s3://some-bucket/other", "s3://some-bucket"):
        open_store(url, sqs_url=queue).announce("exp/row/theirs.json")
    store = open_store("s3://some-bucket/team", sqs_url=queue)
    store.announce("exp/row/ours.json")
    assert read(store, "exp", 1) == ["exp/row/ours.json"]
    assert store.announcements("exp", 0) == []
    assert waiting(aws_env, queue) == 3  # their readers will come


def test_what_is_no_result_is_announced_to_nobody(aws_env: Any, queue: str) -> None:
    store, sqs = open_store("s3://some-bucket/team", sqs_url=queue), aws_env.client("sqs")
    for key in ("team/notes.txt", "team/exp/row/log.txt", "team/row/s.json", "team/exp/.row/s.json"):
        sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(s3_event("some-bucket", key)))
    assert store.announcements("exp", 1) == []
    assert waiting(aws_env, queue) == 0


def test_a_queue_may_be_given_by_name(aws_env: Any, queue: str) -> None:
    store, asked = open_store("some-bucket", sqs_url=queue.rsplit("/", 1)[1]), []
    store.client("sqs").meta.events.register(  # type: ignore[attr-defined]
        "provide-client-params.sqs", lambda params, **_: asked.append(params.get("QueueUrl"))
    )
    store.announce("exp/row/s.json")
    assert read(store, "exp", 1) == ["exp/row/s.json"]
    assert set(asked) == {None, queue}  # moto would take the name for a url; AWS doesn't


def test_a_reader_stops_waiting_before_the_store_is_closed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.announcements, "exp", 3600)
        store.stop_waiting()
        assert waiting.result(60) == []


@pytest.mark.parametrize(("asked", "sent"), [(0, 0), (-3, 0), (0.4, 0), (7, 7), (19.6, 20), (3600, 20)])
def test_sqs_is_asked_to_wait_no_longer_than_it_can(aws_env: Any, queue: str, asked: float, sent: int) -> None:
    store, waits = open_store("some-bucket", sqs_url=queue), []
    events = store.client("sqs").meta.events  # type: ignore[attr-defined]
    events.register("provide-client-params.sqs", lambda params, **_: waits.append(params["WaitTimeSeconds"]))
    events.register("before-call.sqs", lambda **_: (SimpleNamespace(status_code=200), {}))  # sends nothing
    assert store.announcements("exp", asked) == []
    assert waits == [sent]


def test_a_list_of_many_pages(aws_env: Any) -> None:
    bucket, s3 = aws_env.new_bucket(), aws_env.client("s3")
    store = open_store(bucket)
    keys = [f"exp/row-{i}/s.json" for i in range(5)]
    for key in keys:
        store.put_if_absent(key, b"x")
    store.client("s3").meta.events.register(  # type: ignore[attr-defined]
        "provide-client-params.s3.ListObjectsV2", lambda params, **_: params | {"MaxKeys": 2}
    )
    assert sorted(store.keys()) == keys
    assert s3.head_object(Bucket=bucket, Key=keys[0])["ContentType"] == "application/json"


def test_old_results_cost_a_look_no_more_than_reading_what_is_missing(aws_env: Any) -> None:
    """Pages of ten stand for S3's of a thousand."""
    store = open_store(aws_env.new_bucket())
    store.client("s3").meta.events.register(  # type: ignore[attr-defined]
        "provide-client-params.s3.ListObjectsV2", lambda params, **_: params | {"MaxKeys": 10}
    )
    old = [f"exp/row-{n:03}/old.json" for n in range(200)]
    new = [f"exp/row-{n:03}/new.json" for n in range(200, 230)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key: store.put_if_absent(key, b"x"), old + new[::2]))
    found, unknown = store.find(new)
    assert found.union(unknown) >= set(new[::2])
    assert not found - set(new[::2])
    assert len(found) >= 5  # these keys are close together, so a page of a listing settles several
    assert store.usage["s3:ListObjectsV2"] <= 3  # not the 20 pages that come before
    sparse = [key.replace("old", "wanted") for key in old[::10]]
    assert store.find(sparse) == (set(), sparse[1:])  # a page settles one of them, so the rest is left to be read
    assert store.usage["s3:ListObjectsV2"] <= 4


def test_a_listing_in_another_order_tells_nothing(aws_env: Any) -> None:
    store = open_store(aws_env.new_bucket())
    keys = [f"exp/row-{n:02}/s.json" for n in range(20)]
    for key in keys:
        store.put_if_absent(key, b"x")
    store.client("s3").meta.events.register(  # type: ignore[attr-defined]
        "after-call.s3.ListObjectsV2", lambda parsed, **_: parsed["Contents"].reverse()
    )
    assert store.find(keys) == (set(), keys)
