"""Rollouts on disk: what is read back is what was written."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.record.trajectory import RouteTable
from agentcore_rl_toolkit.rollout import Action, Rollout, RolloutWriter, read_rollouts
from agentcore_rl_toolkit.rollout.run_folder.rollout_files import SCHEMA_VERSION, read_fields, rollout_fields
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_fidelity, make_rollout, make_row

KINDS = ["jsonl", "parquet"]


def same(one: Rollout, other: Rollout) -> None:
    plain_one, plain_other = (replace(rollout, rows=()) for rollout in (one, other))
    assert vars(plain_one) == vars(plain_other)
    assert len(one.rows) == len(other.rows)
    for row, again in zip(one.rows, other.rows, strict=True):
        assert (row.token_ids, row.weight, row.prompt_length) == (again.token_ids, again.weight, again.prompt_length)
        assert (row.spans, row.versions) == (again.spans, again.versions)
        assert row.token_ids.typecode == again.token_ids.typecode
        for array, back in ((row.loss_mask, again.loss_mask), (row.logprobs, again.logprobs)):
            assert array.dtype == back.dtype
            np.testing.assert_array_equal(array, back)
        assert (row.routes is None) == (again.routes is None)
        if row.routes is not None and again.routes is not None:
            for known, back in ((row.routes.data, again.routes.data), (row.routes.known, again.routes.known)):
                assert known.dtype == back.dtype
                np.testing.assert_array_equal(known, back)


def write(path: Path, *rollouts: Rollout) -> Path:
    with RolloutWriter(path) as writer:
        for rollout in rollouts:
            writer.write(rollout)
    return path


def routes(largest: int, length: int = 6, width: int = 3) -> RouteTable:
    numbers = np.arange(length * width, dtype=np.int32).reshape(length, width)
    numbers[0, 0] = largest
    known = np.ones(length, np.uint8)
    known[-1] = 0
    return RouteTable(numbers, known)


@pytest.fixture
def everything() -> list[Rollout]:
    """One of each thing that a rollout can hold."""
    untrained = make_row([1, 2], [3, 4, 5, 70_000], [1, 0, 1, 1], [-0.1, math.nan, -1e-9, -123.456], weight=0.75)
    versions = make_row(versions=(("7", 3, 4), ("main@8", 4, 5)), weight=0.25)
    return [
        make_rollout(0.1, untrained, sample=3),
        make_rollout([0.0, 0.5, -1.0], untrained, versions, sample=2),
        make_rollout(
            1.0,
            payload={"prompt": "Grüße, 世界 🙂\n\u2028", "half": "\ud83d", "n": None, "deep": [{"a": [1, 2.5]}]},
            result={"response": "\x00é", "status_code": 200, "metrics": {"NaN": "NaN"}},
        ),
        failed(Status.TIMEOUT, rows=(), error="Zeit überschritten"),
        make_rollout(None, action=Action.REFILL, why="stale", fidelity=make_fidelity([], masked={"no logprob": 3})),
        replace(make_rollout(), seconds={"open": 0.001234, "session": 12.5}),
        *(make_rollout(1.0, make_row([1, 2, 3], [4, 5, 6], routes=routes(n))) for n in (17, 255, 256, 65_536)),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_back_whole(tmp_path: Path, kind: str, everything: list[Rollout]) -> None:
    path = write(tmp_path / "deep" / "er" / f"rollouts.{kind}", *everything)
    back = list(read_rollouts(path))
    assert len(back) == len(everything)
    for one, other in zip(everything, back, strict=True):
        same(one, other)
    assert math.isnan(back[0].rows[0].logprobs[3])


@given(st.lists(st.one_of(st.floats(width=32, allow_nan=True, allow_infinity=False)), min_size=1, max_size=8))
def test_logprobs_keep_every_bit(values: list[float]) -> None:
    rollout = make_rollout(1.0, make_row([1], range(len(values)), [1] * len(values), values))
    line = json.dumps(rollout_fields(rollout), allow_nan=False)  # JSON as others read it
    same(rollout, read_fields(json.loads(line)))


def test_routes_take_as_few_bytes_as_they_need() -> None:
    sizes = []
    for largest in (255, 256, 65_536):
        fields = rollout_fields(make_rollout(1.0, make_row(routes=routes(largest))))["rows"][0]["routes"]
        sizes.append((fields["dtype"], fields["width"]))
    assert sizes == [("|u1", 3), ("<u2", 3), ("<i4", 3)]


def test_rows_of_before_routes_were_kept_can_be_read() -> None:
    fields = rollout_fields(make_rollout())
    del fields["rows"][0]["routes"]
    assert read_fields(fields).rows[0].routes is None


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_a_batch(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"many.{kind}", *(make_rollout(float(n), sample=n) for n in range(150)))
    assert [(r.sample, r.reward) for r in read_rollouts(path)] == [(n, float(n)) for n in range(150)]


@pytest.mark.parametrize("kind", KINDS)
def test_threads_may_write_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rollouts.{kind}"
    with RolloutWriter(path) as writer:

        def some(start: int) -> None:
            for n in range(start, start + 40):
                writer.write(make_rollout(1.0, make_row([1] * 2000), sample=n))

        threads = [threading.Thread(target=some, args=(start,)) for start in (0, 40, 80)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(rollout.sample for rollout in read_rollouts(path)) == list(range(120))


@pytest.mark.parametrize("kind", KINDS)
def test_no_rollouts_are_a_file_too(tmp_path: Path, kind: str) -> None:
    assert list(read_rollouts(write(tmp_path / f"none.{kind}"))) == []


def test_a_line_is_there_before_the_file_is_closed(tmp_path: Path) -> None:
    writer = RolloutWriter(tmp_path / "rollouts.jsonl")
    writer.write(make_rollout())
    assert len(list(read_rollouts(writer.path))) == 1
    writer.close()


# Broken files


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "rollouts.jsonl", make_rollout(sample=0), make_rollout(sample=1))
    whole = path.read_bytes()
    for cut in (len(whole) - 1, len(whole) - 30, whole.index(b"\n") + 2):
        path.write_bytes(whole[:cut])
        assert [rollout.sample for rollout in read_rollouts(path)] == [0]


def test_going_on_after_a_kill_leaves_no_broken_line(tmp_path: Path) -> None:
    path = write(tmp_path / "rollouts.jsonl", make_rollout(sample=0), make_rollout(sample=1))
    whole = path.read_bytes()
    for cut in (whole.index(b"\n") + 40, whole.index(b"\n") + 1):
        path.write_bytes(whole[:cut])
        write(path, make_rollout(sample=2))
        assert [rollout.sample for rollout in read_rollouts(path)] == [0, 2]
    path.write_bytes(b'{"half of' + b" " * 200_000)
    write(path, make_rollout(sample=3))
    assert [rollout.sample for rollout in read_rollouts(path)] == [3]


BROKEN = ["{", "", "[1]", "7", '{"schema_version": 1}', '"x"', '{"schema_version": 1, "rows": 3}', "[" * 100_000]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda line: line[:24])
def test_any_other_broken_line_is_an_error_with_its_number(tmp_path: Path, broken: str) -> None:
    path = write(tmp_path / "rollouts.jsonl", make_rollout(sample=0))
    path.write_text(path.read_text() + broken + "\n" + path.read_text())
    reading = read_rollouts(path)
    assert next(reading).sample == 0
    with pytest.raises(ConfigError, match=r"rollouts\.jsonl, line 2 is not a rollout"):
        next(reading)


@pytest.mark.parametrize(("name", "value"), [("status", "well"), ("action", "keep"), ("fidelity", {"x": 1})])
def test_values_that_are_none_are_an_error_too(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(rollout_fields(make_rollout()) | {name: value}) + "\n")
    with pytest.raises(ConfigError, match="line 1 is not a rollout"):
        list(read_rollouts(path))


def test_an_error_of_the_readers_own_is_not_the_files(tmp_path: Path) -> None:
    reading = read_rollouts(write(tmp_path / "rollouts.jsonl", make_rollout()))
    next(reading)
    with pytest.raises(KeyError, match="mine"):
        reading.throw(KeyError("mine"))  # type: ignore[attr-defined]


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    assert SCHEMA_VERSION == 2
    path = write(tmp_path / "rollouts.jsonl", make_rollout())
    path.write_text(path.read_text().replace('"schema_version":2', '"schema_version":3'))
    with pytest.raises(ConfigError, match="schema version 3; this package reads 1 and 2"):
        list(read_rollouts(path))
    parquet = write(tmp_path / "rollouts.parquet", make_rollout())
    table = pyarrow.parquet.read_table(parquet)
    place = table.column_names.index("schema_version")
    newer = pyarrow.array([3], pyarrow.int32())
    pyarrow.parquet.write_table(table.set_column(place, "schema_version", newer), parquet)
    with pytest.raises(ConfigError, match="schema version 3; this package reads 1 and 2"):
        list(read_rollouts(parquet))


def test_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollouts are written as \.jsonl or \.parquet"):
        RolloutWriter(tmp_path / "rollouts.json")


def test_parquet_can_not_be_added_to(tmp_path: Path) -> None:
    path = write(tmp_path / "rollouts.parquet", make_rollout())
    with pytest.raises(ConfigError, match="a Parquet file can't be appended to"):
        RolloutWriter(path)
    assert len(list(read_rollouts(path))) == 1


def test_parquet_that_was_not_closed_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    path.write_bytes(b"PAR1 and then the process was killed")
    with pytest.raises(ConfigError, match="not a complete Parquet file"):
        list(read_rollouts(path))


def test_half_a_character_in_a_message_spoils_no_parquet_file(tmp_path: Path) -> None:
    path = write(tmp_path / "rollouts.parquet", failed(error="bytes \udcff of a tool"))
    assert [rollout.error for rollout in read_rollouts(path)] == ["bytes ? of a tool"]


def test_parquet_has_columns_to_filter_by(tmp_path: Path) -> None:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(write(tmp_path / "rollouts.parquet", make_rollout(0.5), failed()))
    assert table["status"].to_pylist() == ["completed", "agent_error"]
    assert table["sample"].to_pylist() == [0, 0]
    assert json.loads(table["fidelity"][0].as_py()) == asdict(make_rollout().fidelity)
