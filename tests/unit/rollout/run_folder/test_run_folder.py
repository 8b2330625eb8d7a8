"""A run's folder: what the reader finds is what was written, whenever it looks."""

from __future__ import annotations

import json
import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.record.conversation import ReadableTurn, Transcript
from agentcore_rl_toolkit.rollout import Action, Rollout, read_rollouts
from agentcore_rl_toolkit.rollout.run_folder import RunWriter, open_run
from agentcore_rl_toolkit.rollout.run_folder.rollout_files import rollout_fields
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_fidelity, make_group, make_rollout, make_row


def turn(number: int, before: int | None, messages: tuple[int, ...], content: str, *calls: str, **more: Any) -> Any:
    known: dict[str, Any] = {
        "turn": number,
        "before": before,
        "messages": messages,
        "reply": {
            "content": content,
            "reasoning": "",
            "tool_calls": [{"id": f"c{number}", "name": name, "arguments": "{}"} for name in calls],
        },
        "tools": ("search",),
        "started": 100.0 + 10 * number,
        "seconds": 4.0,
        "waited": 1.0,
        "prompt_tokens": 3,
        "sampled_tokens": 2,
        "finish": "stop",
        "origin": "bridge",
        "unbridged": "",
        "masked": None,
        "versions": (("1", 2),),
        "parse_failures": 0,
    }
    return ReadableTurn(**known | more)


def rollout(session: str, reward: float | None = 1.0, **fields: Any) -> Rollout:
    said = Transcript(
        ({"role": "user", "content": f"question of {session}"}, {"role": "tool", "content": "Grüße"}),
        (turn(0, None, (0,), "", "search", "invented"), turn(1, 0, (1,), "done", finish="length")),
    )
    made = make_rollout(reward, session_id=session, group=0, transcript=said)
    seconds = {"open": 0.5, "invoke": 1.0, "session": 20.0, "model": 8.0, "fold": 0.25}
    return replace(made, seconds=seconds, **fields)


def write_step(folder: Path, step: int, *rollouts: Rollout, phase: str = "train", process: int = 0) -> None:
    with RunWriter(folder, process=process) as run, run.part(phase, step) as part:
        for one in rollouts:
            part.write(one)


def sessions(run: Any, **chosen: Any) -> list[str | None]:
    return [run.text("session_id", at) for at in run.select(**chosen)]


def test_an_entry_says_what_became_of_a_rollout(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as run, run.part("train", 3) as part:
        good, bad = rollout("good", 0.5), failed(session_id="bad", error="no 0x17 at 42", group=0, sample=1)
        part.write(good)
        part.write(bad)
        part.add_group(make_group(good, bad, dropped="no variance"))
        part.add_advantages({"good": 1.5})
    found = open_run(tmp_path)
    entry = found.entry(0)
    assert (entry.key, entry.phase, entry.step, entry.group, entry.session_id) == ("0.0", "train", 3, 0, "good")
    assert (entry.reward, entry.advantage, entry.dropped) == (0.5, 1.5, "no variance")
    assert (entry.tools, entry.unknown_tools, entry.truncated) == (("invented", "search"), 1, 1)
    assert (entry.seconds, entry.model, entry.tool, entry.waiting) == (21.75, 6.0, 12.0, 3.5)
    other = found.entry(1)
    assert (other.status, other.why, other.cause) == ("agent_error", "agent_error", "agent_error: no # at #")
    assert (other.reward, other.advantage, other.dropped) == (None, None, "no variance")
    assert found.causes() == [{"cause": "agent_error: no # at #", "rollouts": 1, "example": "0.1"}]
    assert json.loads(json.dumps(entry.to_dict()))["tools"] == ["invented", "search"]


def test_a_new_run_in_the_place_of_one_that_is_open(tmp_path: Path) -> None:
    write_step(tmp_path / "run", 0, rollout("a"), rollout("b"), rollout("c"))
    run = open_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    run.refresh()
    assert len(run.table) == 0
    for again in range(2):  # the second time, nobody looks in between
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        write_step(tmp_path / "run", 0, *(rollout(f"new-{again}-{n}") for n in range(4 + again)))
        run.refresh()
        assert sessions(run) == [f"new-{again}-{n}" for n in range(4 + again)]


def test_a_rows_ratios_come_back_in_its_run_and_in_a_copy(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run") as run, run.part("train", 3) as part:
        for session in ("a", "b"):
            part.write(rollout(session))
        part.add_ratios({("a", 0): np.array([0.5, -0.25]), ("a", 1): np.array([1e9, np.nan])})
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for name in ("run", "copy"):
        found = open_run(tmp_path / name)
        assert found.log_ratios(0, 0).tolist() == [0.5, -0.25]
        assert found.log_ratios(0, 1)[0] == 60_000
        assert np.isnan(found.log_ratios(0, 1)[1])
        assert found.log_ratios(0, 2) is None
        assert found.log_ratios(1, 0) is None


def test_a_step_that_runs_again_has_no_ratios_of_before_and_broken_ones_are_left_out(tmp_path: Path) -> None:
    for again in range(2):
        with RunWriter(tmp_path) as run, run.part("train", 0) as part:
            part.write(rollout("a"))
            assert open_run(tmp_path).log_ratios(0, 0) is None
            part.add_ratios({("a", 0): np.array([float(again)])})
        assert open_run(tmp_path).log_ratios(0, 0).tolist() == [again]
    path = tmp_path / "ratios" / "step-000000.jsonl"
    whole = path.read_bytes()
    for broken in (whole[:-1], whole.replace(b'":"', b'":"!'), whole.replace(b'"log', b'"lag'), b"\xff" * 50, b""):
        path.write_bytes(broken)
        assert open_run(tmp_path).log_ratios(0, 0) is None


def test_a_rollout_comes_back_whole(tmp_path: Path) -> None:
    given = rollout("a", printed="\x1b[31mred")
    write_step(tmp_path, 0, rollout("b"), given)
    back = open_run(tmp_path).rollout(1)
    assert rollout_fields(back) == rollout_fields(given)
    assert (back.transcript, back.printed, back.group) == (given.transcript, given.printed, 0)


def test_the_conversation_of_a_turn_begins_at_its_beginning() -> None:
    said = rollout("a").transcript
    contents = [(message["role"], message["content"]) for message in said.conversation(1)]
    assert contents == [("user", "question of a"), ("assistant", ""), ("tool", "Grüße"), ("assistant", "done")]
    assert said.unknown_tools() == ["invented"]


def test_filters_and_orders(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("a", 0.5), rollout("b", 0.25, sample=1), failed(session_id="c", input_id="row-2"))
    write_step(tmp_path, 1, rollout("d", 0.75, group=1), rollout("e", None, action=Action.MASK, why="no reward"))
    write_step(tmp_path, 2, rollout("f"), phase="after")
    run = open_run(tmp_path)
    assert sessions(run, step=1) == ["d", "e"]
    assert sessions(run, phase="after") == ["f"]
    assert sessions(run, phase=("train", "after"), group=1) == ["d"]
    assert sessions(run, input_id="row-2") == ["c"]
    assert sessions(run, failed=True) == ["c"]
    assert sessions(run, status="agent_error", failed=True) == ["c"]
    assert (sessions(run, trained=True), sessions(run, trained=False)) == (["a", "b", "d"], ["c", "e"])
    assert sessions(run, tool="search", step=0) == ["a", "b"]
    assert sessions(run, tool="sea") == []
    assert sessions(run, phase="train", sort="reward") == ["b", "a", "d", "c", "e"]
    assert sessions(run, phase="train", sort="reward", descending=True, limit=2) == ["d", "a"]
    assert sessions(run, text="QUESTION of d") == ["d"]
    assert sessions(run, text="grüße", limit=2) == ["a", "b"]
    assert sessions(run, text="it broke") == ["c"]
    assert sessions(run, text="search") == ["a", "b", "d", "e", "f"]  # a call; offering it is no text
    assert sessions(run, text="nothing") == []
    for wrong in ({"sort": "input_id"}, {"phase": "never"}, {"status": "well"}):
        with pytest.raises(ConfigError, match="hint: use one of"):
            run.select(**wrong)


@pytest.mark.parametrize("half", ["", "half \ud800 "], ids=["as text", "with escapes"])
def test_any_script_is_searched_in_any_case(tmp_path: Path, half: str) -> None:
    said = 'ÜBER Ответ: "12"\n\x1b[1mΟΔΟΣ\\n 答え 🐍'
    write_step(tmp_path, 0, rollout("a", printed=half + said), rollout("b", printed=half + "ÄNDERE \x1b[0m"))
    run = open_run(tmp_path)
    for text in ("Ответ", "оТВЕТ", "über", "ÜBER", '"12"\n', "\x1b[1m", "ΟΔΟΣ\\n", "οδο", "答え", "🐍", said):
        assert sessions(run, text=text) == ["a"], text
    assert sessions(run, text="ändere") == ["b"]
    assert sessions(run, text="Ответа") == []


def test_a_rollout_that_cannot_be_read_ends_no_search(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("a"), rollout("b"))
    write_step(tmp_path, 1, rollout("c"))
    file = tmp_path / "rollouts" / "step-000000.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"schema_version":2', b'"schema_version":7', 1))
    run = open_run(tmp_path)
    (tmp_path / "rollouts" / "step-000001.jsonl").unlink()
    assert sessions(run, text="question of") == ["b"]


def test_rollouts_are_found_by_key_and_by_session(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("abc-1"), rollout("abd-2"), failed(session_id=None))
    run = open_run(tmp_path)
    assert [run.find(key) for key in ("0.1", "abc", "abd-2")] == [1, 0, 1]
    for key in ("ab", "", "0.7", "xyz", "9" * 30):
        with pytest.raises(ConfigError, match="rollout"):
            run.find(key)


def test_a_step_that_runs_again_replaces_what_it_left(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("a"), rollout("b"))
    write_step(tmp_path, 1, rollout("c"), rollout("d"))
    write_step(tmp_path, 1, rollout("e"))
    run = open_run(tmp_path)
    assert sessions(run) == ["a", "b", "e"]
    assert [run.entry(at).key for at in range(3)] == ["0.0", "0.1", "0.4"]
    assert [run.rollout(at).session_id for at in range(3)] == ["a", "b", "e"]


def test_what_was_removed_is_gone(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("a"))
    write_step(tmp_path, 1, rollout("b"))
    run = open_run(tmp_path)
    (tmp_path / "rollouts" / "step-000001.jsonl").unlink()
    assert run.refresh()
    assert sessions(run) == ["a"]


def test_processes_have_an_index_each(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("a"))
    write_step(tmp_path, 0, rollout("b"), process=1)
    run = open_run(tmp_path)
    assert [(run.entry(at).key, run.entry(at).session_id) for at in range(2)] == [("0.0", "a"), ("1.0", "b")]
    assert run.rollout(1).session_id == "b"
    assert sessions(run, text="question of b") == ["b"]


def test_a_second_writer_of_one_process_is_refused(tmp_path: Path) -> None:
    with RunWriter(tmp_path), pytest.raises(ConfigError, match="another process writes"):
        RunWriter(tmp_path)


def test_a_reader_sees_what_is_appended(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        run = open_run(tmp_path)
        assert not run.refresh()
        with writer.part("before", 0) as part:
            for number in range(3):
                part.write(rollout(f"s{number}"))
                assert run.refresh()
                assert len(run.table) == number + 1
                assert run.rollout(number).session_id == f"s{number}"
            assert (tmp_path / "evaluations" / "unfinished-step-000000.jsonl").exists()
        assert (tmp_path / "evaluations" / "step-000000.jsonl").exists()
        run.refresh()
        assert [run.rollout(at).session_id for at in range(3)] == ["s0", "s1", "s2"]
        assert not run.refresh()


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_cut_last_record_is_skipped_and_its_line_is_read(tmp_path: Path, cut: int) -> None:
    write_step(tmp_path, 0, rollout("a"), rollout("b"))
    records = tmp_path / "index" / "0.records"
    os.truncate(records, records.stat().st_size - cut)
    run = open_run(tmp_path)
    assert sorted(sessions(run), key=str) == ["a", "b"]
    write_step(tmp_path, 1, rollout("c"))
    again = open_run(tmp_path)
    assert sorted(map(str, sessions(again))) == ["a", "b", "c"]


@pytest.mark.parametrize("cut", [1, 500])
def test_a_cut_last_line_is_skipped(tmp_path: Path, cut: int) -> None:
    write_step(tmp_path, 0, rollout("a"), rollout("b"))
    file = tmp_path / "rollouts" / "step-000000.jsonl"
    os.truncate(file, file.stat().st_size - cut)
    for _ in range(2):  # with an index that has more, and without one
        assert sessions(open_run(tmp_path)) == ["a"]
        shutil.rmtree(tmp_path / "index", ignore_errors=True)


def test_zeros_that_a_lost_disk_leaves_are_no_rollouts(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("a"))
    with (tmp_path / "index" / "0.records").open("ab") as file:
        file.write(bytes(1000))
    assert sessions(open_run(tmp_path)) == ["a"]


def test_without_its_index_a_run_has_the_same_rollouts(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("a"), failed(session_id="b"))
    write_step(tmp_path, 4, rollout("c"), phase="at_step")
    before = open_run(tmp_path)
    shutil.rmtree(tmp_path / "index")
    after = open_run(tmp_path)
    order = [after.find(key) for key in ("a", "b", "c")]
    for name in ("step", "status", "action", "turns", "tokens", "phase", "model", "tool"):
        np.testing.assert_array_equal(before.table[name], after.table[name][order])
    assert after.rollout(after.find("c")).session_id == "c"


def test_a_folder_can_be_copied(tmp_path: Path) -> None:
    write_step(tmp_path / "run", 0, rollout("a"))
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    shutil.rmtree(tmp_path / "run")
    assert open_run(tmp_path / "copy").rollout(0).session_id == "a"


def test_runs_of_the_first_schema_open(tmp_path: Path) -> None:
    """As `train` wrote them before there was an index: numbers as JSON, and no text."""
    made = make_rollout(0.5, make_row((1, 2), (3, 4), (1, 0)), sample=1)
    old = rollout_fields(made) | {"schema_version": 1}
    for name in ("group", "transcript", "printed"):
        del old[name]
    old["rows"][0] |= {"token_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 0], "logprobs": [None, None, -0.5, None]}
    for place in ("rollouts/step-000002.jsonl", "evaluations/step-000000.jsonl"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_text(json.dumps(old) + "\n" + json.dumps(old)[:50])
    run = open_run(tmp_path)
    assert [(run.entry(at).phase, run.entry(at).step) for at in range(2)] == [("before", 0), ("train", 2)]
    assert rollout_fields(run.rollout(1)) == rollout_fields(made)
    (tmp_path / "evaluations" / "step-000003.jsonl").write_text(json.dumps(old) + "\n")
    for summary, phase in (({"steps": 3}, "at_step"), ({"steps": 3, "after": 0.5}, "after")):
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        assert [open_run(tmp_path).entry(at).phase for at in range(3)] == ["before", phase, "train"]
    write_step(tmp_path, 3, rollout("new"))
    assert run.refresh()
    assert len(run.table) == 4


def test_a_broken_line_hides_no_other(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("a"))
    file = tmp_path / "rollouts" / "step-000000.jsonl"
    file.write_bytes(b'{"schema_version": 2}\n{half\n' + file.read_bytes())
    shutil.rmtree(tmp_path / "index")
    run = open_run(tmp_path)
    assert sessions(run) == ["a"]
    assert run.rollout(0).session_id == "a"


def test_sizes_beyond_a_field_do_not_stop_a_run(tmp_path: Path) -> None:
    huge = make_fidelity([make_row()], turns=2**40, sampled=2**33)
    write_step(tmp_path, 0, rollout("a", fidelity=huge, input_id="x" * 10_000, status=Status.TIMEOUT))
    entry = open_run(tmp_path).entry(0)
    assert (entry.turns, entry.sampled, len(entry.input_id)) == (2**32 - 1, 2**32 - 1, 300)


def test_half_characters_are_kept(tmp_path: Path) -> None:
    write_step(tmp_path, 0, rollout("a", error="half \ud800", input_id="\udfff"))
    run = open_run(tmp_path)
    assert (run.entry(0).input_id, run.rollout(0).error) == ("\udfff", "half \ud800")


def test_a_full_disk_costs_a_rollout_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RunWriter(tmp_path) as run, run.part("train", 0) as part:
        part.write(rollout("a"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (part.path.stat().st_size + 10, hard))
        try:
            for name in ("b", "b2", "b3"):
                part.write(rollout(name))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        assert run.failures == 3
        part.write(rollout("c"))
    first, last = (record.getMessage() for record in caplog.records)
    assert "File too large" in first
    assert last == "3 rollouts of step 0 could not be written"
    assert [one.session_id for one in read_rollouts(part.path)] == ["a", "c"]


def test_files_beside_the_rollouts(tmp_path: Path) -> None:
    with RunWriter(tmp_path) as writer:
        writer.describe(kind="train", model="tiny")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n[]\n{"step": 2}\n{"step"')
    run = open_run(tmp_path)
    assert (run.info, run.summary()) == ({"kind": "train", "model": "tiny"}, None)
    assert [line["step"] for line in run.metrics()] == [1, 2]
    (tmp_path / "summary.json").write_text("{half")
    assert run.summary() is None
