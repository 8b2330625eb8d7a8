"""`agentcore-rl show`: a run, lists, one rollout, tokens, two rollouts, and text that would harm a terminal."""

from __future__ import annotations

import json
import pty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.gateway.record.conversation import ReadableTurn, Transcript
from agentcore_rl_toolkit.rollout import Rollout
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.store import open_store
from agentcore_rl_toolkit.studio.terminal.result_view import read_results
from agentcore_rl_toolkit.studio.terminal.safe_text import GREENS, RED, Paint
from agentcore_rl_toolkit.studio.terminal.token_view import show_tokens
from agentcore_rl_toolkit.types import RolloutId, Status
from support.rollouts import failed, make_rollout, make_row

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m\r\u202egnp.exe\u2066\u200f<script>"


def said(reply: str, prompt: str = "how many?", tool: str = "", asked_model: str = "") -> Transcript:
    calls = [{"id": "c", "name": tool, "arguments": '{"expression": "1+1"}'}] if tool else []
    turn = ReadableTurn(
        turn=0, before=None, messages=(0,), reply={"content": reply, "reasoning": "", "tool_calls": calls},
        tools=("calculator",), started=1.0, seconds=0.5, waited=0.0, prompt_tokens=3, sampled_tokens=2, finish="stop",
        origin="first", unbridged="", masked=None, versions=(("7", 2),), parse_failures=0,
        asked_model=asked_model,
    )  # fmt: skip
    return Transcript(({"role": "user", "content": prompt},), (turn,))


def rollout(name: str, reward: float, reply: str, **more: Any) -> Rollout:
    made = make_rollout(reward, input_id=f"00000{more.pop('group', 0)}-{'abcdef01' if 'a' in name else 'bcdef012'}")
    return replace(made, session_id=name, transcript=said(reply, **more), group=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step with held-out rows before and after, a failure, hostile text, and a finding."""
    folder = tmp_path_factory.mktemp("runs") / "train"
    with RunWriter(folder) as writer:
        writer.describe(kind="train", model="tiny", agent=f"agent {HOSTILE}")
        lost = failed(Status.AGENT_ERROR, session_id="lost", input_id="lost", error=f"ValueError: {HOSTILE}")
        for phase, step, rollouts in (
            ("before", 0, (rollout("a0", 0.0, "wrong"), rollout("b0", 0.0, "wrong, too"))),
            (
                "train",
                0,
                (
                    rollout("a1", 1.0, "two", tool="calculator"),
                    rollout("b1", 0.5, HOSTILE, asked_model="gpt-4.1"),
                    lost,
                ),
            ),
            ("after", 1, (rollout("a2", 1.0, "right"), rollout("b2", 0.0, "wrong, too"))),
        ):
            with writer.part(phase, step) as part:
                for one in rollouts:
                    part.write(one)
    finding = {"guard": "odd", "step": 1, "action": "warn", "problem": f"odd {HOSTILE}", "example": "0.2"}
    (folder / "guards.jsonl").write_text(json.dumps(finding) + "\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "entropy": 0.25, "sampler/kl": 1e-05, "seconds": 2.0}\n')
    return folder


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


def test_a_run_at_a_glance(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = show(capsys, str(run))
    lines = [line.split() for line in out.splitlines()]
    assert lines[4][:7] == ["0", "0.750", "0.000", "[0.00,", "0.00]", "3", "1"]
    assert {"0.250", "1e-05", "2.0"} <= set(lines[4])
    assert "1 × agent_error: ValueError: " in out
    assert "step 0  odd: odd" in out, "the step whose rollouts it is about"
    assert "--rollout 0.2" in out


def test_a_folder_of_runs_is_not_taken_for_results(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run.parent)]) == 1
    assert f"is a folder of runs, not a run\nhint: name one: {run}" in capsys.readouterr().err


def test_a_run_that_a_guard_stopped_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finding = {"guard": "fidelity", "step": 1, "action": "stop", "problem": "odd", "example": None}
    (tmp_path / "guards.jsonl").write_text(json.dumps(finding) + "\n")
    with (tmp_path / "metrics.jsonl").open("w") as metrics:
        for step, state in (
            (1, "stopped by the guard fidelity"),
            (2, "cut off, or a copy of a run that runs elsewhere"),
        ):
            print(json.dumps({"step": step}), file=metrics, flush=True)
            assert show(capsys, str(tmp_path)).splitlines()[1] == f"0 rollouts, {state}"


def test_fine_tuning_at_a_glance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text('{"kind": "sft", "model": "tiny"}')
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5, "token_accuracy": 0.75, "entropy": 0.25}\n')
    lines = show(capsys, str(tmp_path)).splitlines()
    assert lines[0].endswith("sft · tiny")
    assert lines[4].split() == ["1", "0.500", "75.0%", "0.250"]


COMMANDS = ("", "--failed", "--step 0", "--grep wrong", "--rollout b1", "--rollout b1 --tokens", "--diff 0.2 0.3")


@pytest.mark.parametrize("arguments", [*COMMANDS, "--json", "--rollout b1 --json", "--step 0 --json"])
def test_hostile_text_never_reaches_the_terminal(run: Path, arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = show(capsys, str(run), *arguments.split())
    assert not {c for c in out if not c.isprintable()} - {"\n", "\t"}


def test_lists(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def keys(*arguments: str) -> list[str]:
        return [json.loads(line)["session_id"] for line in show(capsys, str(run), *arguments, "--json").splitlines()]

    assert keys("--step", "0", "--phase", "train") == ["a1", "b1", "lost"]
    assert keys("--phase", "train", "--sort", "reward", "--limit", "1") == ["b1"]
    assert keys("--phase", "train", "--sort", "reward", "--descending", "--limit", "1") == ["a1"]
    assert keys("--failed") == ["lost"]
    assert keys("--grep", "wrong") == ["a0", "b0", "b2"]
    head, _, *lines = show(capsys, str(run), "--grep", "wrong").splitlines()
    assert (head.split()[-1], ["wrong" in line for line in lines]) == ("found", [True] * 3)
    assert keys("--tool", "calculator") == ["a1"]
    assert keys("--row", "bcdef") == ["b0", "b1", "b2"]
    assert main(["show", str(run), "--grep", "nobody says this"]) == 1


def test_lists_by_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunWriter(tmp_path) as run, run.part("train", 0) as part:
        for number in (1, 3, 5):
            part.write(make_rollout(1.0, make_row([1], [2] * number), session_id=f"sampled-{number}"))

    def keys(*arguments: str) -> list[str]:
        return [
            json.loads(line)["session_id"] for line in show(capsys, str(tmp_path), *arguments, "--json").splitlines()
        ]

    assert keys("--min-sampled", "3") == ["sampled-3", "sampled-5"]
    assert keys("--max-sampled", "3") == ["sampled-1", "sampled-3"]
    head, *lines = [
        line.split() for line in show(capsys, str(tmp_path), "--min-sampled", "2", "--max-sampled", "4").splitlines()
    ]
    assert [line[head.index("sampled")] for line in lines if line[0] == "0.1"] == ["3"]


def test_one_rollout(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = show(capsys, str(run), "--rollout", "a1")
    assert out.startswith("0.2: train step 0, row 000000-abcdef01, sample 0: completed, reward 1\nrow  answer: 4\n")
    assert 'user  how many?\nassistant  two\ncalls  calculator({"expression": "1+1"})\nresult  {' in out
    assert "weights 7" in out
    assert "asked for" not in out
    assert "the agent asked for gpt-4.1" in show(capsys, str(run), "--rollout", "b1")


def test_two_rollouts_of_the_row_that_improved_most(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = show(capsys, str(run), "--diff", "before", "after")
    assert out.splitlines()[2:] == ["  user  how many?", "- assistant  wrong", "+ assistant  right"]
    same = show(capsys, str(run), "--diff", "0", "1", "--row", "bcdef012")
    assert same.splitlines()[2:] == ["  user  how many?", "  assistant  wrong, too"]
    for names in (("before", "0.6"), ("0.1", "after"), ("0.1", "1")):
        mixed = show(capsys, str(run), "--diff", *names).splitlines()
        assert [line.split()[1] for line in mixed[:2]] == ["0.1:", "0.6:"], "the row of the key"
    assert main(["show", str(run), "--diff", "before", "at_step"]) == 1


def test_tokens_without_colour_have_marks(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "⟦" in show(capsys, str(run), "--rollout", "a1", "--tokens", "--tokenizer", str(tiny.path()))


def test_tokens_are_coloured_by_mask_and_logprob() -> None:
    row = make_row([1], [2, 3, 4], mask=[1, 1, 0], logprobs=[-0.01, -5.0, -1.0])
    _, text = show_tokens([row], lambda ids: f"t{ids[-1]}", Paint(True))
    assert text == f"t1{GREENS[3]}t2\x1b[0m{GREENS[0]}t3\x1b[0m{RED}t4\x1b[0m"
    assert list(show_tokens([row], lambda ids: f"t{ids[-1]}", Paint()))[1] == "t1⟦t2t3⟧⟨t4⟩"


@contextmanager
def terminal() -> Iterator[Any]:
    ours, theirs = pty.openpty()
    with open(ours, "rb"), open(theirs, "w") as stream:
        yield stream


def test_colour_is_for_terminals_that_want_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with terminal() as stream, (tmp_path / "file").open("w") as file:
        assert Paint.for_stream(stream).colour
        assert not Paint.for_stream(file).colour
        monkeypatch.setenv("NO_COLOR", "1")
        assert not Paint.for_stream(stream).colour


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A store with three results, one of them a failure."""
    store = open_store(str(tmp_path / "results"))
    for number, reward in enumerate((0.25, 1.0, None)):
        document = {"status_code": 200, "rewards": reward, "response": f"it is {number} {HOSTILE}"}
        if reward is None:
            document = {"status_code": 500, "stop_reason": "no answer after 9 s"}
        key = RolloutId("exp", f"row-{number}", f"session-{number}").result_key
        store.put_if_absent(key, json.dumps(document).encode())
    return tmp_path / "results"


def test_results_are_counted_as_they_are_read(results: Path) -> None:
    counts: list[int] = []
    assert len(read_results(results, counts.append)) == 3
    assert counts == [1, 2, 3]


def test_results_are_filtered_sorted_and_shown(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = show(capsys, str(results))
    assert "3 results (2 completed, 1 agent_error), mean reward 0.625" in out
    lines = show(capsys, str(results), "--sort", "reward", "--descending").splitlines()[-3:]
    assert [line.split()[1] for line in lines] == ["row-1", "row-0", "row-2"]
    for flags in (["--grep", "IT IS 1"], ["--row", "row-1"], ["--status", "completed", "--grep", "is 1"]):
        assert "1 result (1 completed)" in show(capsys, str(results), *flags)
    out = show(capsys, str(results), "--rollout", "session-1")
    assert "row row-1: completed, reward 1" in out
    assert "it is 1" in out
    assert not {c for c in out if not c.isprintable()} - {"\n"}
    assert "no answer after 9 s" in show(capsys, str(results), "--failed")
    assert "row row-1: completed" in show(capsys, str(results), "--rollout", "exp/row-1/session-1.json")
    assert "3 results" in show(capsys, str(results), "--rollout", "session")
    assert "3 results (2 completed, 1 agent_error)" in show(capsys, str(results / "exp"))
    assert main(["show", str(results), "--rollout", "ession-1"]) == 1
    assert main(["show", str(results), "--grep", "nowhere"]) == 1
    assert "no rollout matches" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--step", "0"], ["--diff", "before", "after"], ["--tool", "x"], ["--min-sampled", "9"], ["--sort", "tokens"]],
)
def test_flags_that_mean_nothing_for_results_are_refused(
    results: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(results), *flags]) == 1
    assert flags[0].removeprefix("--") in capsys.readouterr().err


def test_results_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = {"index": 0, "sample": 1, "input_id": "q", "status": "timeout", "rewards": None, "elapsed": 1.0}
    outcome |= {"result_key": None, "error": f"no answer {HOSTILE}"}
    solved = {"status": "completed", "rewards": [0.5, 1.0], "result_key": "exp/q/s.json", "error": None}
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"outcomes": [outcome, outcome | solved]}))
    out = show(capsys, str(report))
    assert "2 results (1 timeout, 1 completed), mean reward 1.000" in out
    assert "1 × no answer " in out
    report.write_text(json.dumps({"outcomes": [{"model": HOSTILE} | outcome, {"model": "b"} | outcome | solved]}))
    out = show(capsys, str(report))
    assert "b: 1 result (1 completed), mean reward 1.000" in out
    assert not {c for c in out if not c.isprintable()} - {"\n"}
    report.write_text(json.dumps({"outcomes": [outcome | {"index": index} for index in (0, 10)]}))
    out = show(capsys, str(report), "--rollout", "0.1")
    assert out.startswith("0.1: row q: timeout, reward none\n")
    assert "\nelapsed  1.0\n" in out
    assert "\nerror  no answer " in out
    assert not {c for c in out if not c.isprintable()} - {"\n"}
    for broken in ("[]", "{", '{"outcomes": [1]}'):
        report.write_text(broken)
        assert main(["show", str(report)]) == 1
        assert "can't be shown" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().err
