"""What every store must do, run against each of them: a directory, and S3 with SQS on real servers."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import ConfigError, KeyInvalid, KeyNotFound, StoreError, StoreUnavailable
from agentcore_rl_toolkit.store import Store, open_store

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


def test_a_missing_bucket_is_an_error_for_good(aws_env: object) -> None:
    with pytest.raises(StoreError) as caught:
        open_store("no-such-bucket-here").put_if_absent("exp/row/s.json", b"x")
    assert not isinstance(caught.value, StoreUnavailable)


def test_wrong_credentials_are_an_error_for_good(aws_env: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError) as caught:
        open_store("some-bucket").put_if_absent("exp/row/s.json", b"x")
    assert not isinstance(caught.value, StoreUnavailable)


def test_without_a_queue_s3_announces_nothing(aws_env: object) -> None:
    store = open_store("some-bucket")
    assert not store.announces
    store.announce("exp/row/s.json")
    with pytest.raises(ConfigError, match="sqs_url"):
        store.announcements("exp", 0)
