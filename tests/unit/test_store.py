"""What the contract suite can't see: the retry schedule on a virtual clock, the choice of a store, its edges."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import ConfigError, KeyInvalid, StoreError, StoreUnavailable
from agentcore_rl_toolkit.store import open_store
from agentcore_rl_toolkit.store.retry import FIRST_DELAY, LONGEST_DELAY, retry
from agentcore_rl_toolkit.store.watch import DirectoryWatch


class Clock:
    def __init__(self) -> None:
        self.now, self.sleeps = 0.0, []  # type: float, list[float]

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def failing(times: float, error: Exception) -> object:
    calls = iter(range(10**9))

    def call() -> str:
        if next(calls) < times:
            raise error
        return "done"

    return call


@given(st.integers(0, 12), st.integers())
def test_it_tries_until_it_succeeds_waiting_longer_each_time(failures: int, seed: int) -> None:
    clock, dice = Clock(), random.Random(seed)
    call = failing(failures, StoreUnavailable("down"))
    assert retry(call, seconds=1e6, clock=clock, sleep=clock.sleep, dice=dice.random) == "done"
    assert len(clock.sleeps) == failures
    for n, slept in enumerate(clock.sleeps):
        assert 0 <= slept <= min(FIRST_DELAY * 2**n, LONGEST_DELAY)


def test_the_waits_are_jittered_over_the_whole_range() -> None:
    firsts = []
    for seed in range(200):
        clock = Clock()
        retry(
            failing(1, StoreUnavailable("x")),
            seconds=9,
            clock=clock,
            sleep=clock.sleep,
            dice=random.Random(seed).random,
        )
        firsts += clock.sleeps
    assert min(firsts) < FIRST_DELAY * 0.1 < FIRST_DELAY * 0.9 < max(firsts)


def test_it_gives_up_at_the_deadline_and_not_before() -> None:
    clock = Clock()
    with pytest.raises(StoreUnavailable, match="down"):
        retry(failing(1e9, StoreUnavailable("down")), seconds=30, clock=clock, sleep=clock.sleep, dice=lambda: 1.0)
    assert clock.now == 30


def test_an_error_for_good_is_not_tried_again() -> None:
    clock = Clock()
    with pytest.raises(StoreError, match="denied"):
        retry(failing(1, StoreError("denied")), seconds=30, clock=clock, sleep=clock.sleep)
    assert clock.sleeps == []


@pytest.mark.parametrize(
    ("url", "opened"),
    [
        ("my-bucket", "s3://my-bucket"),
        ("s3://my-bucket", "s3://my-bucket"),
        ("s3://my-bucket/", "s3://my-bucket"),
        ("s3://my-bucket/a/b/", "s3://my-bucket/a/b"),
        ("/no/such/dir", "/no/such/dir"),
        ("file:///no/such%20dir", "/no/such dir"),
        ("file://localhost/no/such", "/no/such"),
    ],
)
def test_one_string_chooses_the_store(url: str, opened: str) -> None:
    store = open_store(url)
    assert store.url == opened
    assert open_store(store.url).url == opened


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "./runs",
        "runs/demo",
        "My_Bucket",
        "a",
        "s3://",
        "s3:///x",
        "http://x/y",
        "file://host/x",
        "file:x",
        None,
        7,
    ],
)
def test_what_names_no_store_is_refused(url: object) -> None:
    with pytest.raises(ConfigError):
        open_store(url)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["../up", "a/../b", "a//b"])
def test_a_prefix_cannot_climb(prefix: str) -> None:
    with pytest.raises(KeyInvalid):
        open_store(f"s3://my-bucket/{prefix}")


def test_a_link_inside_the_directory_leads_nowhere(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "exp").symlink_to(outside)
    with pytest.raises(KeyInvalid, match="symbolic link"):
        open_store(str(root)).put_if_absent("exp/row/s.json", b"x")
    assert list(outside.iterdir()) == [] or list((outside / "row").iterdir()) == []


def test_a_crash_while_writing_leaves_no_document(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put_if_absent("exp/row/a.json", b"x")
    (tmp_path / ".new" / "half-written").write_bytes(b"{")
    assert list(store.keys()) == ["exp/row/a.json"]


def test_running_out_of_descriptors_is_worth_another_try(tmp_path: Path) -> None:
    code = """if True:
        import os, resource, sys
        from agentcore_rl_toolkit.errors import StoreUnavailable
        from agentcore_rl_toolkit.store import open_store
        store = open_store(sys.argv[1])
        store.put_if_absent("exp/row/first.json", b"x")
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        try:
            store.put_if_absent("exp/row/second.json", b"x")
        except StoreUnavailable as error:
            print(error)
        os.close(taken.pop())
        os.close(taken.pop())
        print(store.put_if_absent("exp/row/second.json", b"x"))
    """
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    first, second = out.stdout.splitlines()
    assert "could not store 'exp/row/second.json'" in first
    assert "Too many open files" in first
    assert second == "True"


def test_without_inotify_a_wait_is_a_nap(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path)
    watch.close()  # what a system without inotify starts with
    start = time.monotonic()
    watch.wait(60)
    assert time.monotonic() - start < 10


def test_readers_share_a_directory_without_taking_twice(tmp_path: Path) -> None:
    stores = [open_store(str(tmp_path)) for _ in range(4)]
    for i in range(100):
        stores[0].announce(f"exp/row-{i}/s.json")
    found: list[list[str]] = [[] for _ in stores]

    def read(i: int) -> None:
        while keys := stores[i].announcements("exp", 0):
            found[i] += keys

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(itertools.chain(*found)) == sorted(f"exp/row-{i}/s.json" for i in range(100))
