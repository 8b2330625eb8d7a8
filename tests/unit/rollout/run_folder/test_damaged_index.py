"""A disk, a copy or a stranger may leave anything in a run's folder: readers show what is whole, and go on."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentcore_rl_toolkit.rollout.run_folder import RunWriter, open_run
from agentcore_rl_toolkit.rollout.run_folder.run_index import FIELDS
from agentcore_rl_toolkit.studio.run_queries import read_groups, read_rows, read_steps
from support.rollouts import failed, make_rollout

RECORD = np.dtype([(name, kind) for name, _, kind in FIELDS])
SESSIONS = ("a", "b", "c")


def make_run(folder: Path, *, step: int = 0, reward: float = 0.5) -> Path:
    with RunWriter(folder) as run, run.part("train", step) as part:
        for sample, session in enumerate(SESSIONS):
            part.write(make_rollout(reward, session_id=session, input_id="q", group=0, sample=sample))
    return folder


def shown(folder: Path) -> list[str | None]:
    """The sessions of a run, after everything was asked that its index answers."""
    run = open_run(folder)
    found = [run.entry(at).to_dict() for at in range(len(run.table))]
    steps = read_steps(run)
    groups = [read_groups(run, one["phase"], one["step"]) for one in steps]
    json.dumps([found, steps, groups, read_rows(run), run.causes()], allow_nan=False)
    return [one["session_id"] for one in found]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", 9),
        ("phase", 255),
        ("status", 255),
        ("action", 255),
        ("offset", 2**64 - 1),
        ("at", math.nan),
        ("seconds", math.inf),
        ("model", math.nan),
        ("reward", -math.inf),
        ("reward", 1e300),
        ("advantage", math.inf),
        ("input_id", 2**31),
        ("mark", 0),
    ],
)
def test_a_record_with_a_value_that_nobody_writes_is_left_out(tmp_path: Path, field: str, value: Any) -> None:
    path = make_run(tmp_path) / "index" / "0.records"
    records = np.fromfile(path, RECORD)
    records[field][2] = value
    records.tofile(path)
    assert shown(tmp_path) == ["a", "c"]


def test_a_rollout_of_any_number_takes_no_memory(tmp_path: Path) -> None:
    path = make_run(tmp_path) / "index" / "0.records"
    records = np.fromfile(path, RECORD)
    records["n"][2] = 2**32 - 1
    records.tofile(path)
    run = open_run(tmp_path)
    assert [run.entry(at).key for at in range(3)] == ["0.0", "0.2", f"0.{2**32 - 1}"]
    assert run.rollout(run.find(f"0.{2**32 - 1}")).session_id == "b"


def test_rewards_of_any_size_are_shown(tmp_path: Path) -> None:
    assert shown(make_run(tmp_path, reward=1e308)) == [*SESSIONS]
    assert open_run(tmp_path).rollout(0).rewards == 1e308


def test_records_that_a_copy_gets_before_their_texts_wait_for_them(tmp_path: Path) -> None:
    whole, copy = make_run(tmp_path / "run"), tmp_path / "copy"
    shutil.copytree(whole, copy)
    (copy / "index" / "0.texts").write_bytes(b"")
    shutil.move(copy / "rollouts", copy / "later")
    run = open_run(copy)
    assert len(run.table) == 0
    shutil.move(copy / "later", copy / "rollouts")
    shutil.copy(whole / "index" / "0.texts", copy / "index" / "0.texts")
    assert run.refresh()
    assert [run.entry(at).key for at in range(len(run.table))] == ["0.0", "0.1", "0.2"]
    assert not run.refresh()


@pytest.mark.parametrize("broken", [b"\0" * 20 + b"\n", b"[1]\n", b"[" * 100_000 + b"\n", b'"half\n'])
def test_a_broken_text_costs_neither_the_reader_nor_the_writer_a_run(tmp_path: Path, broken: bytes) -> None:
    texts = make_run(tmp_path) / "index" / "0.texts"
    with texts.open("ab") as file:
        file.write(broken)
    assert shown(tmp_path) == [*SESSIONS]
    make_run(tmp_path, step=1)
    assert shown(tmp_path) == [*SESSIONS, *SESSIONS]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session_id", {}),
        ("input_id", [1]),
        ("sample", "x"),
        ("group", 1.5),
        ("seconds", {"session": "long"}),
        ("seconds", {"session": math.nan}),
        ("fidelity", {"sampled": None}),
        ("error", ["no text"]),
        ("transcript", {"messages": 7, "turns": 7, "left_out": 0}),
    ],
)
def test_a_line_with_a_value_that_nobody_writes_hides_no_other(tmp_path: Path, name: str, value: Any) -> None:
    with RunWriter(tmp_path) as run, run.part("train", 0) as part:
        part.write(failed(session_id="a", input_id="q", error="it broke"))
        part.write(make_rollout(session_id="b"))
    shutil.rmtree(tmp_path / "index")
    file = tmp_path / "rollouts" / "step-000000.jsonl"
    first, *rest = file.read_text().splitlines(keepends=True)
    fields = json.loads(first)
    fields[name] = fields[name] | value if name == "fidelity" else value
    file.write_text("".join([json.dumps(fields) + "\n", *rest]))
    assert shown(tmp_path)[-1] == "b"


def test_a_folder_in_the_place_of_a_file_is_left_out(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "rollouts" / "step-000001.jsonl").mkdir()
    (tmp_path / "index" / "1.records").mkdir()
    (tmp_path / "evaluations").write_text("")
    assert shown(tmp_path) == [*SESSIONS]
