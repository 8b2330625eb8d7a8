"""The edges of a directory store that the contract suite can't see."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import KeyInvalid, KeyNotFound, ResultUnreadable, StoreError, StoreUnavailable
from agentcore_rl_toolkit.store import open_store


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
def test_temporary_and_final_errors_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def broken(*args: object) -> None:
        raise OSError(getattr(errno, name), "broken on purpose")

    monkeypatch.setattr(os, "link", broken)
    with pytest.raises(StoreError, match="broken on purpose") as caught:
        open_store(str(tmp_path)).put_if_absent("exp/row/s.json", b"x")
    assert isinstance(caught.value, StoreUnavailable) is (name in PASSING)
    assert ("hard links" in str(caught.value)) is (name == "EPERM")


def test_a_folder_is_not_read_as_a_document(tmp_path: Path) -> None:
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


def test_a_message_that_is_not_an_announcement_is_ignored(tmp_path: Path) -> None:
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
