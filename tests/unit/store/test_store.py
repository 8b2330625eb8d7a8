"""What the contract suite can't see: the retry schedule on a virtual clock, the choice of a store, its edges."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, HTTPClientError, ParamValidationError, ResponseStreamingError
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import (
    ConfigError,
    KeyInvalid,
    KeyNotFound,
    ResultUnreadable,
    StoreError,
    StoreForbidden,
    StoreMisconfigured,
    StoreUnavailable,
)
from agentcore_rl_toolkit.store import Store, open_store
from agentcore_rl_toolkit.store import directory_watch as watch
from agentcore_rl_toolkit.store.directory_watch import DirectoryWatch
from agentcore_rl_toolkit.store.retry import FIRST_DELAY, LONGEST_DELAY, retry
from agentcore_rl_toolkit.store.s3 import S3Store


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
    assert list(outside.iterdir()) == []


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


def test_the_waits_double_up_to_a_ceiling_and_end_at_the_deadline() -> None:
    clock, told = Clock(), []
    error = StoreUnavailable("down")

    def call() -> None:
        raise error

    with pytest.raises(StoreUnavailable) as caught:
        retry(
            call,
            seconds=18.0,
            on_retry=lambda *args: told.append(args),
            clock=clock,
            sleep=clock.sleep,
            dice=lambda: 1.0,
        )
    assert caught.value is error
    assert clock.sleeps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 1.7])
    assert told == [(error, slept) for slept in clock.sleeps]


@pytest.mark.parametrize("error", [StoreError("denied"), KeyNotFound("none"), OSError("no"), ValueError("bug")])
def test_only_what_may_pass_is_tried_again(error: Exception) -> None:
    calls = []

    def call() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        retry(call, seconds=30, clock=(clock := Clock()), sleep=clock.sleep)
    assert len(calls) == 1


# --- the directory ---------------------------------------------------------------------------------------------------


def test_a_writer_that_comes_second_at_the_last_moment_loses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, link = open_store(str(tmp_path)), os.link

    def other_writer_first(source: Path, target: Path) -> None:
        if not target.exists():
            target.write_bytes(b"theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", other_writer_first)
    assert store.put_if_absent("exp/row/s.json", b"ours") is False
    assert store.get("exp/row/s.json") == b"theirs"


def test_a_document_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That fsync is called, on the right files and in the right order; what a disk does with it no test can see."""
    store, fsync, synced = open_store(str(tmp_path)), os.fsync, []

    def record(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        there = (tmp_path / "exp/row/s.json").exists()
        synced.append((path.parent.name if path.is_file() else path.name, path.is_file() and path.read_bytes(), there))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    store.put_if_absent("exp/row/s.json", b"x" * 10)
    assert synced == [(".new", b"x" * 10, False), ("row", False, True)]
    store.announce("exp/row/s.json")  # a hint: not worth a disk's time
    assert len(synced) == 2


def test_no_draft_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    assert store.put_if_absent("exp/row/s.json", b"x")
    assert not store.put_if_absent("exp/row/s.json", b"x")
    store.announce("exp/row/s.json")

    def broken(*args: object) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "link", broken)
    with pytest.raises(StoreUnavailable):
        store.put_if_absent("exp/row/t.json", b"x")
    assert list((tmp_path / ".new").iterdir()) == []
    assert list(store.keys()) == ["exp/row/s.json"]


PASSING = ["EAGAIN", "EINTR", "EIO", "ENOSPC", "EDQUOT", "EMFILE", "ENFILE", "ESTALE"]


@pytest.mark.parametrize("name", [*PASSING, "EACCES", "EPERM", "EROFS", "ENAMETOOLONG"])
def test_errors_that_may_pass_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def broken(*args: object) -> None:
        raise OSError(getattr(errno, name), "broken on purpose")

    monkeypatch.setattr(os, "link", broken)
    with pytest.raises(StoreError, match="broken on purpose") as caught:
        open_store(str(tmp_path)).put_if_absent("exp/row/s.json", b"x")
    assert isinstance(caught.value, StoreUnavailable) is (name in PASSING)
    assert ("hard links" in str(caught.value)) is (name == "EPERM")


def test_a_folder_is_no_document(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put_if_absent("exp/row/s.json", b"x")
    for key in ("exp/row", "exp/row/s.json/below.json"):
        assert not store.exists(key)
        with pytest.raises(KeyNotFound):
            store.get(key)


def test_keys_come_in_their_order(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    keys = ["a.json", "a/b/1.json", "a/b/2.json", "a/c/0.json", "b/a/0.json"]
    for key in reversed(keys):
        store.put_if_absent(key, b"x")
    assert list(store.keys()) == keys


@pytest.mark.parametrize(
    ("link", "target"), [("exp", "."), ("exp/row", "row"), ("exp/row/s.json", "row/s.json"), ("exp/row/s.json", "none")]
)
def test_nothing_outside_is_reached_through_a_link(tmp_path: Path, link: str, target: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    open_store(str(outside)).put_if_absent("row/s.json", b"x")
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(outside / target)
    store = open_store(str(root))
    calls = (store.get, store.exists, lambda key: store.put_if_absent(key, b"y"))
    for call in calls:
        with pytest.raises(KeyInvalid, match="symbolic link"):
            call("exp/row/s.json")
    assert [list(store.keys(prefix)) for prefix in ("", "exp/", "exp/row/", "exp/row/s")] == [[]] * 4


def test_announcements_outside_are_not_taken_through_a_link(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    open_store(str(outside)).announce("exp/row/s.json")
    root.mkdir()
    (root / ".announced").symlink_to(outside / ".announced")
    with pytest.raises(KeyInvalid, match="symbolic link"):
        open_store(str(root)).announcements("exp", 0)
    assert open_store(str(outside)).announcements("exp", 0) == ["exp/row/s.json"]


def test_links_that_stay_inside_are_fine(tmp_path: Path) -> None:
    root, link = tmp_path / "root", tmp_path / "link"
    root.mkdir()
    link.symlink_to(root)
    store = open_store(str(link))
    store.put_if_absent("exp/row/s.json", b"x")
    (root / "exp/row/same.json").symlink_to("s.json")
    (root / "exp/again").symlink_to("row")
    (root / "exp/loop.json").symlink_to("loop.json")
    assert store.get("exp/row/same.json") == store.get("exp/again/s.json") == b"x"
    assert store.exists("exp/again/s.json")
    assert not store.exists("exp/loop.json")
    assert list(store.keys()) == ["exp/row/s.json", "exp/row/same.json"]  # linked folders are not walked


def test_announcements_are_read_oldest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", itertools.count(98).__next__)
    store = open_store(str(tmp_path))
    keys = [f"exp/row-{i}/s.json" for i in range(5)]
    for key in keys:
        store.announce(key)
    assert store.announcements("exp", 0) == keys


def test_an_announcement_that_another_reader_took_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, unlink = open_store(str(tmp_path)), Path.unlink
    store.announce("exp/row/s.json")

    def unlink_after_another(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=True)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_after_another)
    assert store.announcements("exp", 0) == []


def test_what_is_no_announcement_harms_none(tmp_path: Path) -> None:
    """Whoever may write to the folder can leave anything there."""
    store = open_store(str(tmp_path))
    store.announce("exp/row/s.json")
    folder = tmp_path / ".announced" / "exp"
    (folder / "0-a-folder").mkdir()
    (folder / "0-bytes").write_bytes(b"\xff\xfe\x00")
    (folder / "0-long").write_bytes(b"x" * 10_000_000)
    keys = store.announcements("exp", 0)
    assert "exp/row/s.json" in keys
    assert max(map(len, keys)) <= 4096
    assert store.announcements("exp", 0) == []


# --- the watch -------------------------------------------------------------------------------------------------------

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[DirectoryWatch]:
    watch = DirectoryWatch(tmp_path)
    yield watch
    watch.close()


def readable(watch: DirectoryWatch) -> bool:
    assert watch._descriptor is not None
    return select.select([watch._descriptor], [], [], 0)[0] != []


@linux
@pytest.mark.parametrize("how", ["written", "linked", "moved"])
def test_a_watch_does_not_nap(
    watched: DirectoryWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def nap(seconds: float) -> None:
        raise AssertionError("inotify is there: no need to nap")

    monkeypatch.setattr(watch.time, "sleep", nap)
    source = tmp_path.parent / f"source-{tmp_path.name}"
    source.write_bytes(b"x")
    assert not readable(watched)
    if how == "written":
        (tmp_path / "new").write_bytes(b"x")
    elif how == "linked":
        os.link(source, tmp_path / "new")
    else:
        source.rename(tmp_path / "new")
    assert readable(watched)
    watched.wait(60)
    assert not readable(watched)  # what was seen does not wake the next wait


@linux
def test_a_wait_lasts_as_long_as_asked_and_yields_to_another_thread(
    watched: DirectoryWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    class Poll:
        def register(self, *args: object) -> None: ...

        def poll(self, milliseconds: float) -> list[object]:
            waits.append(milliseconds)
            return [object()]  # woken, but another thread has read the event since

    assert watched._descriptor is not None
    assert not os.get_blocking(watched._descriptor)
    monkeypatch.setattr(watch.select, "poll", Poll)
    watched.wait(1.5)
    assert waits == [1500]


@linux
@pytest.mark.parametrize(("init", "add"), [(-1, 0), (None, -1)])
def test_out_of_inotify_instances_a_watch_naps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, init: int | None, add: int
) -> None:
    spare = os.open("/dev/null", os.O_RDONLY)

    class Libc:
        def __init__(self, *args: object, **kwargs: object) -> None: ...

        def inotify_init1(self, flags: int) -> int:
            return spare if init is None else init

        def inotify_add_watch(self, *args: object) -> int:
            return add

    monkeypatch.setattr(ctypes, "CDLL", Libc)
    watched = DirectoryWatch(tmp_path)
    naps: list[float] = []
    monkeypatch.setattr(watch.time, "sleep", naps.append)
    watched.wait(60)
    assert len(naps) == 1
    assert naps[0] < 1
    if init is None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(spare)  # the watch gave it back
    else:
        os.close(spare)


@linux
def test_a_closed_watch_holds_nothing(tmp_path: Path) -> None:
    watched = DirectoryWatch(tmp_path)
    descriptor = watched._descriptor
    assert descriptor is not None
    watched.close()
    watched.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


# --- S3's answers ----------------------------------------------------------------------------------------------------


class AnsweringServer:
    """Gives every request the same answer, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.code, self.requests = 200, "", []  # type: int, str, list[tuple[str, str, str]]
        self.cut: str | None = None
        self.body: str | None = None
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.requests.append((self.command, self.headers["Host"], self.path))
                if server.cut == "before":
                    self.close_connection = True
                    return
                body = f"<Error><Code>{server.code}</Code><Message>told so</Message></Error>" if server.code else ""
                body = body if server.body is None else server.body
                self.send_response(server.status)
                self.send_header("Content-Type", "application/xml")
                if server.status == 301:
                    self.send_header("x-amz-bucket-region", "eu-west-3")
                self.send_header("Content-Length", str(len(body) + (100 if server.cut == "inside" else 0)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body.encode())
                self.close_connection = server.cut == "inside"

            do_GET = do_PUT = do_HEAD = answer

            def log_message(self, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.port = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture(scope="module")
def server() -> Iterator[AnsweringServer]:
    server = AnsweringServer()
    yield server
    server.close()


@pytest.fixture
def answers(server: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> AnsweringServer:
    """The server, with this process's AWS settings pointing at it."""
    server.status, server.code, server.cut, server.body, server.requests = 200, "", None, None, []
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.port}")
    return server


def calls(store: Store) -> list[Callable[[], Any]]:
    key = "exp/row/s.json"
    return [lambda: store.put_if_absent(key, b"x"), lambda: store.get(key), lambda: list(store.keys("exp/"))]


PASSING_STATUSES = (408, 409, 425, 429, 500, 502, 503, 504)


PASSING_CODES = ("ConditionalRequestConflict", "RequestTimeout", "SlowDown", "Throttling", "ThrottlingException")


FOR_GOOD = [
    (400, "InvalidRequest"),
    (401, "Whatever"),
    (403, "AccessDenied"),
    (404, "NoSuchBucket"),
    (405, "MethodNotAllowed"),
    (501, "NotImplemented"),
]


def test_answers_that_may_pass_are_told_apart(answers: AnsweringServer) -> None:
    cases = {(status, code): True for status in PASSING_STATUSES for code in ("Whatever", "")}
    cases |= {(400, code): True for code in PASSING_CODES} | dict.fromkeys(FOR_GOOD, False)
    store = open_store("some-bucket")
    for (answers.status, answers.code), passing in cases.items():
        for call in calls(store):
            with pytest.raises(StoreError, match="in s3://some-bucket: ") as caught:
                call()
            assert isinstance(caught.value, StoreUnavailable) is passing, (answers.status, answers.code)
            assert not isinstance(caught.value, KeyNotFound)
    assert len(answers.requests) == 3 * len(cases)  # trying again is not boto3's business


def test_an_answer_that_is_cut_off_may_pass(answers: AnsweringServer) -> None:
    store = open_store("some-bucket")
    answers.cut = "before"
    for call in calls(store):
        with pytest.raises(StoreUnavailable):
            call()
    answers.cut, answers.body = "inside", "{}"
    for limit in (None, 1000):
        with pytest.raises(StoreUnavailable):
            store.get("exp/row/s.json", limit=limit)


@pytest.mark.parametrize("cut", [None, "inside"])  # with the length of what is left, and with another
@pytest.mark.parametrize("body", ["", "<ListBucketResult><Name>some-buc", "<html></html>"])
def test_a_list_that_is_cut_off_is_not_an_empty_one(answers: AnsweringServer, body: str, cut: str | None) -> None:
    answers.body, answers.cut = body, cut
    with pytest.raises(StoreUnavailable, match=r"could not list 'exp/' in s3://some-bucket: "):
        list(open_store("some-bucket").keys("exp/"))


@pytest.mark.parametrize(
    "inside", ["<Name>some-bucket</Name>", "<KeyCount>0</KeyCount>", "<IsTruncated>false</IsTruncated>"]
)
def test_a_list_may_be_empty(answers: AnsweringServer, inside: str) -> None:
    answers.body = f"<ListBucketResult>{inside}</ListBucketResult>"
    assert list(open_store("some-bucket").keys("exp/")) == []


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (HTTPClientError(error="x"), True),
        (EndpointConnectionError(endpoint_url="x"), True),
        (ResponseStreamingError(error="x"), True),
        (ConnectionResetError("x"), True),
        (ParamValidationError(report="x"), False),
        (ValueError("x"), False),
    ],
)
def test_what_boto3_raises_is_told_apart(monkeypatch: pytest.MonkeyPatch, error: Exception, passing: bool) -> None:
    class Client:
        def put_object(self, **kwargs: object) -> None:
            raise error

    monkeypatch.setattr(S3Store, "_client", lambda self, service: Client())
    with pytest.raises(StoreError) as caught:
        open_store("some-bucket").put_if_absent("exp/row/s.json", b"x")
    assert isinstance(caught.value, StoreUnavailable) is passing
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("code", ["PreconditionFailed", ""])
def test_a_key_that_is_taken(answers: AnsweringServer, code: str) -> None:
    answers.status, answers.code = 412, code
    assert open_store("some-bucket").put_if_absent("exp/row/s.json", b"x") is False


@pytest.mark.parametrize("code", ["NoSuchKey", "NotFound", ""])
def test_a_key_that_is_missing(answers: AnsweringServer, code: str) -> None:
    answers.status, answers.code = 404, code
    store = open_store("some-bucket")
    assert store.exists("exp/row/s.json") is False
    with pytest.raises(KeyNotFound, match=r"exp/row/s\.json"):
        store.get("exp/row/s.json")


def test_missing_credentials_are_a_setting_to_change(answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/no/such/file")
    with pytest.raises(StoreMisconfigured, match="hint: set AWS credentials"):
        open_store("some-bucket").put_if_absent("exp/row/s.json", b"x")


@pytest.mark.parametrize(
    ("status", "code", "kind", "hint"),
    [
        (404, "NoSuchBucket", StoreMisconfigured, "create the bucket"),
        (301, "PermanentRedirect", StoreMisconfigured, "set AWS_REGION to the bucket's region, eu-west-3"),
        (400, "AuthorizationHeaderMalformed", StoreMisconfigured, "set AWS_REGION to the bucket's region"),
        (403, "InvalidAccessKeyId", StoreMisconfigured, "aws sts get-caller-identity"),
        (403, "SignatureDoesNotMatch", StoreMisconfigured, "aws sts get-caller-identity"),
        (400, "ExpiredToken", StoreMisconfigured, "aws sts get-caller-identity"),
        (403, "AccessDenied", StoreForbidden, ""),
        (400, "InvalidRequest", StoreError, ""),
    ],
)
def test_what_has_to_be_changed_is_named(
    answers: AnsweringServer, status: int, code: str, kind: type[StoreError], hint: str
) -> None:
    answers.status, answers.code = status, code
    for call in calls(open_store("some-bucket")):
        with pytest.raises(StoreError, match=f"(?s)some-bucket.*told so.*{hint}") as caught:
            call()
        assert type(caught.value) is kind


def test_the_region_of_a_bucket_is_named(answers: AnsweringServer) -> None:
    answers.status = 400
    answers.body = (
        "<Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong</Message><Region>eu-west-3</Region></Error>"
    )
    with pytest.raises(StoreMisconfigured, match="hint: set AWS_REGION to the bucket's region, eu-west-3"):
        open_store("some-bucket").get("exp/row/s.json")


@pytest.mark.parametrize(
    ("queue", "environ", "region", "endpoint"),
    [
        ("https://sqs.eu-west-3.amazonaws.com/1/q", None, "eu-west-3", "https://sqs.eu-west-3.amazonaws.com"),
        ("https://eu-west-3.queue.amazonaws.com/1/q", None, "eu-west-3", "https://sqs.eu-west-3.amazonaws.com"),
        ("https://queue.amazonaws.com/1/q", None, "us-east-1", "https://sqs.us-east-1.amazonaws.com"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", None, "cn-north-1", "https://sqs.cn-north-1.amazonaws.com.cn"),
        ("https://sqs.eu-west-3.amazonaws.com/1/q", "http://127.0.0.1:4", "eu-west-3", "http://127.0.0.1:4"),
        ("http://127.0.0.1:5/1/q", None, "us-west-2", "http://127.0.0.1:5"),
        ("http://127.0.0.1:5/1/q", "http://127.0.0.1:4", "us-west-2", "http://127.0.0.1:4"),
        ("q", None, "us-west-2", "https://sqs.us-west-2.amazonaws.com"),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_a_queue_is_where_its_url_says(
    answers: AnsweringServer,
    monkeypatch: pytest.MonkeyPatch,
    queue: str,
    environ: str | None,
    region: str,
    endpoint: str,
    own: bool,
) -> None:
    if environ is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", environ)
    elsewhere = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "ap-east-1"}
    settings: dict[str, Any] = {"s3_environ": elsewhere} if own else {"environ": dict(os.environ)}
    sqs = open_store("some-bucket", sqs_url=queue, **settings)._sqs  # type: ignore[attr-defined]
    assert (sqs.meta.region_name, sqs.meta.endpoint_url) == (region, endpoint)
    assert sqs._request_signer._credentials.access_key == "test"


def test_the_bucket_is_in_the_path_of_a_server_of_our_own(
    answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://localhost:{answers.port}")
    assert open_store("s3://some-bucket/a/prefix").put_if_absent("exp/row/s.json", b"x")
    expected = ("PUT", f"localhost:{answers.port}", "/some-bucket/a/prefix/exp/row/s.json")
    assert answers.requests == [expected]


def test_the_bucket_is_in_the_host_on_aws(answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    client = open_store("some-bucket")._s3  # type: ignore[attr-defined]
    url = client.generate_presigned_url("get_object", Params={"Bucket": "some-bucket", "Key": "k"})
    assert url.startswith("https://some-bucket.s3.")


@pytest.mark.parametrize("default", [None, "ap-east-1"])
def test_the_region_that_hints_ask_for_is_used(
    answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch, default: str | None
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    if default is not None:
        monkeypatch.setenv("AWS_DEFAULT_REGION", default)
    monkeypatch.setenv("AWS_REGION", "eu-west-3")  # boto3 doesn't read it
    store = open_store("some-bucket", sqs_url="my-queue")
    clients = store._s3, store._sqs  # type: ignore[attr-defined]
    assert [client.meta.region_name for client in clients] == ["eu-west-3", "eu-west-3"]


def test_settings_that_boto3_refuses_are_named(answers: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not a url")
    with pytest.raises(StoreError, match=r"s3 can't be used: .*\nhint: set AWS_REGION"):
        open_store("some-bucket").put_if_absent("exp/row/s.json", b"x")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Opening one waits for a writer: one such file would hold up whoever reads, and all announcements."""
    store = open_store(str(tmp_path))
    store.put_if_absent("exp/row/s.json", b"{}")
    store.announce("exp/row/s.json")
    os.mkfifo(tmp_path / "exp" / "row" / "pipe.json")
    os.mkfifo(tmp_path / ".announced" / "exp" / "0-pipe")
    with pytest.raises(ResultUnreadable, match="is not a file"):
        store.get("exp/row/pipe.json")
    assert store.announcements("exp", 0) == ["exp/row/s.json"]
    store.close()
