"""How rLLM's sessions went, from what it logs."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.rllm.sessions import Sessions
from agentcore_rl_toolkit.errors import AgentCoreRLError


def log(folder: Path, *errors: str | None, step: str = "train_step_1_epoch_0") -> None:
    """Episodes as rLLM's logger writes them."""
    if not (folder / "command.sh").exists():
        (folder / "command.sh").touch()
    place = folder / "episodes" / step
    place.mkdir(parents=True, exist_ok=True)
    for number, error in enumerate(errors):
        metadata = {} if error is None else {"error": {"error_message": error, "elapsed": 1.0}}
        episode = {"episode_id": f"t:{number}", "termination_reason": "error", "metadata": metadata}
        (place / f"episode_hash1_idt_{number}.json").write_text(json.dumps(episode))
    (place / "batch_summary.json").write_text("{}")


def test_sessions_are_counted_over_all_steps(tmp_path: Path) -> None:
    log(tmp_path, None, "no luck", None)
    log(tmp_path, "no luck", step="val_step_0_epoch_0")
    (tmp_path / "episodes" / "train_step_1_epoch_0" / "episode_hash1_idt_9.json").write_text('{"cut off')
    found = Sessions()
    assert found.read(tmp_path) == {"sessions": 5, "failed_sessions": 2}
    found.check(tmp_path)


def test_the_commonest_failure_is_named(tmp_path: Path) -> None:
    ids = "3f2504e0-4f89-11d3-9a0c-0305e82c3301", "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    log(tmp_path, "ValueError: odd", f"session {ids[0]} was lost after 3.5s", f"session {ids[1]} was lost after 12s")
    found = Sessions()
    found.read(tmp_path)
    either = "|".join(ids)
    with pytest.raises(AgentCoreRLError, match=rf"all 3 sessions failed, 2 of them like this: session ({either}) was"):
        found.check(tmp_path)


def test_a_long_error_is_cut(tmp_path: Path) -> None:
    log(tmp_path, "first line\n" + "x" * 5000)
    found = Sessions()
    found.read(tmp_path)
    with pytest.raises(AgentCoreRLError) as raised:
        found.check(tmp_path)
    assert "first line xxx" in str(raised.value)
    assert len(str(raised.value)) < 600


def test_those_of_an_earlier_run_don_t_count(tmp_path: Path) -> None:
    log(tmp_path, None)
    (tmp_path / "command.sh").touch()
    written = (tmp_path / "episodes" / "train_step_1_epoch_0" / "episode_hash1_idt_0.json").stat().st_mtime_ns
    os.utime(tmp_path / "command.sh", ns=(written + 1, written + 1))
    assert Sessions().read(tmp_path) == {"sessions": 0, "failed_sessions": 0}


def test_without_episodes_nothing_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "command.sh").touch()
    found = Sessions()
    assert found.read(tmp_path) == {"sessions": 0, "failed_sessions": 0}
    with caplog.at_level(logging.WARNING):
        found.check(tmp_path)
    assert "how its sessions went is not known" in caplog.text
