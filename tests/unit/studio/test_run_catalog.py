"""Runs are found below the folders that were named, and nothing outside of these is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.studio.server.run_catalog import FileMemory, OpenRun, RunCatalog
from support.rollouts import make_rollout


def make_run(folder: Path, *sessions: str) -> Path:
    with RunWriter(folder) as run, run.part("train", 0) as part:
        for session in sessions or ("a",):
            part.write(make_rollout(session_id=session))
    return folder


def sessions_of(opened: OpenRun) -> list[str | None]:
    return opened.use(lambda run: [run.text("session_id", at) for at in range(len(run.table))])


def test_runs_are_known_by_their_path(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    make_run(tmp_path / "more" / "second")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    make_run(tmp_path / ".hidden" / "third")
    assert list(RunCatalog([tmp_path]).runs()) == ["first", "more/second"]
    assert list(RunCatalog([tmp_path / "first"]).runs()) == ["first"]
    assert list(RunCatalog([tmp_path / "first", tmp_path / "more"]).runs()) == ["first", "more/second"]
    with pytest.raises(ConfigError, match="not a folder"):
        RunCatalog([tmp_path / "missing"])


@pytest.mark.parametrize("name", ["", "..", "../outside", "first/../../outside", "/etc", "first/.", "first\0"])
def test_only_runs_that_were_found_are_opened(tmp_path: Path, name: str) -> None:
    make_run(tmp_path / "runs" / "first")
    make_run(tmp_path / "outside")
    with pytest.raises(ConfigError, match="no run is named"):
        RunCatalog([tmp_path / "runs"]).open(name)


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    make_run(tmp_path / "outside")
    make_run(tmp_path / "runs" / "first")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "runs" / "circle").symlink_to(tmp_path / "runs")
    assert list(RunCatalog([tmp_path / "runs"]).runs()) == ["first"]


@pytest.mark.parametrize("inside", ["metrics.jsonl", "summary.json", "rollouts/step-000009.jsonl", "index/1.records"])
@pytest.mark.parametrize("later", [False, True])
def test_a_run_with_a_link_that_leads_out_is_refused(tmp_path: Path, inside: str, later: bool) -> None:
    make_run(tmp_path / "runs" / "first")
    (tmp_path / "secret").write_text("{}\n")
    catalog = RunCatalog([tmp_path / "runs"])
    opened = catalog.open("first") if later else None
    (tmp_path / "runs" / "first" / inside).symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match="leads out"):
        sessions_of(opened or catalog.open("first"))
    assert list(catalog.runs()) == ["first"]


def test_a_linked_folder_of_a_run_is_refused_and_a_pipe_too(tmp_path: Path) -> None:
    make_run(tmp_path / "outside")
    run = make_run(tmp_path / "runs" / "first")
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(ConfigError, match="not a file"):
        RunCatalog([tmp_path / "runs"]).open("first")
    (run / "metrics.jsonl").unlink()
    (run / "evaluations").symlink_to(tmp_path / "outside" / "rollouts")
    with pytest.raises(ConfigError, match="leads out"):
        RunCatalog([tmp_path / "runs"]).open("first")


def test_a_link_within_the_folder_is_fine(tmp_path: Path) -> None:
    run = make_run(tmp_path / "first")
    (tmp_path / "kept.json").write_text("{}")
    (run / "summary.json").symlink_to(tmp_path / "kept.json")
    assert sessions_of(RunCatalog([tmp_path]).open("first")) == ["a"]


def test_an_open_run_sees_what_is_appended_and_remembers_what_it_worked_out(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    opened = RunCatalog([tmp_path]).open("first")
    worked: list[int] = []

    def count() -> int:
        return opened.known("count", lambda run: worked.append(1) or len(run.table))

    assert [count(), count(), len(worked)] == [1, 1, 1]
    with RunWriter(tmp_path / "first") as run, run.part("train", 1) as part:
        part.write(make_rollout(session_id="b"))
    assert [count(), count(), len(worked)] == [2, 2, 2]


def test_a_store_of_results_is_not_searched_for_runs_unless_it_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "train")
    (tmp_path / "runs" / "results" / ".new").mkdir(parents=True)
    make_run(tmp_path / "runs" / "results" / "exp" / "row")
    assert list(RunCatalog([tmp_path / "runs"]).runs()) == ["train"]
    assert list(RunCatalog([tmp_path / "runs" / "results"]).runs()) == ["exp/row"]


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    reads: list[Path] = []

    def read(path: Path) -> str | None:
        reads.append(path)
        return path.read_text() if path.exists() else None

    files, path = FileMemory(), tmp_path / "metrics.jsonl"
    assert [files.read(path, read), files.read(path, read)] == [None, None]
    path.write_text("one")
    assert [files.read(path, read), files.read(path, read)] == ["one", "one"]
    with path.open("a") as file:
        file.write(" more")
    assert files.read(path, read) == "one more"
    assert len(reads) == 3


def test_the_list_says_why_a_run_is_left_out_until_it_is_mended(tmp_path: Path) -> None:
    run = make_run(tmp_path / "first")
    catalog = RunCatalog([tmp_path])
    assert (list(catalog.runs()), catalog.check("first")) == (["first"], None)
    (run / "rollouts" / "step-000009.jsonl").symlink_to("/etc/hostname")
    assert "leads out" in str(catalog.check("first"))
    (run / "rollouts" / "step-000009.jsonl").unlink()
    assert catalog.check("first") is None
