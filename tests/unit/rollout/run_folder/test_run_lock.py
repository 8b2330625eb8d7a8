"""One training run at a time in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.rollout.run_folder.run_lock import locked_run


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
