"""One training run at a time in a folder."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.rollout.run_folder.run_lock import is_written_to, locked_run


def test_a_folder_has_one_run_at_a_time(tmp_path: Path) -> None:
    with locked_run(tmp_path / "new"):
        with pytest.raises(ConfigError, match=r"another run is writing to .*\nhint: wait for it"):
            locked_run(tmp_path / "new").__enter__()
        with locked_run(tmp_path / "other"):
            pass
    with locked_run(tmp_path / "new"):
        pass


def test_rollouts_that_were_made_without_training_are_no_place_for_a_run(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as run:
        run.describe(kind="rollout")
    with pytest.raises(ConfigError, match="has rollouts that were made without training"):
        locked_run(tmp_path).__enter__()


def test_a_look_at_the_lock_keeps_no_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with locked_run(tmp_path), RunWriter(tmp_path):
        assert is_written_to(tmp_path)
    for name, write in ((".lock", locked_run), ("index/0.records", RunWriter)):
        assert not is_written_to(tmp_path)
        look = (tmp_path / name).open("rb")
        fcntl.flock(look, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _, look=look: look.close())
        with write(tmp_path):
            assert is_written_to(tmp_path)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    with locked_run(tmp_path / "run"):
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / ".lock").symlink_to(tmp_path / "run" / ".lock")
        assert not is_written_to(tmp_path / "other")
