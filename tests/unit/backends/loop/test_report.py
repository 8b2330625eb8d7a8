"""What a run shows: a live table on a terminal, and lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.loop.report import Report, changed_settings
from agentcore_rl_toolkit.backends.settings import LoopSettings
from agentcore_rl_toolkit.rollout import Action
from agentcore_rl_toolkit.types import Status
from support.process import clean_env
from support.rollouts import make_rollout

SCRIPT = """
import sys
from agentcore_rl_toolkit.backends.loop.report import Report, run_totals
from agentcore_rl_toolkit.backends.settings import LoopSettings
from agentcore_rl_toolkit.client.evaluation import Outcome, summarize
from agentcore_rl_toolkit.types import Status

report = Report(LoopSettings(agent="rl_app.py", model="tiny", output=sys.argv[1], steps=3))
outcomes = [Outcome(str(i), str(i), Status.COMPLETED, float(i % 2), 1.0) for i in range(8)]
held_out = summarize([*outcomes, Outcome("8", "8", Status.REWARD_ERROR, None, 1.0)])
with report:
    report.show_evaluation(0, held_out)
    for step in (1, 2):
        known = {"loss": 0.1, "reward": step / 4, "step_time": 2.0, "fidelity": 1.0, "tokens_per_second": 70.4}
        known |= {"entropy": 1.5, "sampler/kl": 3e-13, "length/sampled_tokens": 41.7, "length/truncated": 0.0}
        known |= {"fidelity/unbridged": 3, "fidelity/unbridged/no_turn_end": 3, "fidelity/unbridged/changed_history": 1}
        if step == 2:
            known |= {"length/truncated": 0.25, "staleness/mean": 1.5}
        report.add_step(step, known | {"rollouts/run": 4, "rollouts/failed": step, "failures/timeout": step})
        report.show_evaluation(step, held_out)
    assert run_totals(report.steps, {}, 2)["unbridged"] == {"no_turn_end": 6, "changed_history": 2}
    report.finish({"checkpoint": sys.argv[1]})
    report.finish({"checkpoint": sys.argv[1], "interrupted": True})
"""


def test_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, env=clean_env())
    assert (done.returncode, done.stdout) == (0, "")
    before, head, first, between, more, second, after, unbridged, *end = done.stderr.splitlines()
    following = [line for line in end if line.startswith("Next: ")]
    assert following == [
        f"Next: agentcore-rl eval rl_app.py --data HELD_OUT --model tiny --model {tmp_path}",
        "Next: the same command with --resume continues the run",
    ]
    assert before == "held-out rows at step 0: mean reward 0.500 [0.053, 0.947] of 8 rollouts, 1 left out"
    assert [" ".join(line.split()) for line in (head, first, more, second)] == [
        "step reward length entropy kl tokens/s failed fidelity unbridged seconds left",
        "1 0.250 42 1.500 3e-13 70 1 100.0% 3 2.0 0:04",
        "step reward length cut entropy kl stale tokens/s failed fidelity unbridged seconds left",
        "2 0.500 42 25% 1.500 3e-13 1.5 70 2 100.0% 3 2.0 0:02",
    ]
    assert len(head) == len(first) <= len(more) == len(second) <= 100
    assert between.startswith("held-out rows at step 1")
    assert after.startswith("held-out rows at step 2")
    assert unbridged.startswith("6 turns began a new row (no_turn_end): the chat template ends a reply with")
    assert "changed_history" not in done.stderr  # the agent's own doing


def test_a_live_table_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = clean_env(TERM="xterm", COLUMNS="100", LINES="40")
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path], stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while select.select([ours], [], [], 60)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how a terminal says that nobody is left
                break
            shown += piece
            if not piece:
                break
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    last = text[text.rindex("tiny · rl_app.py") :]
    cells = [re.findall(r"[^\s│┃┡━╇┩┏┳┓└┴┘├┼┤─]+", line) for line in last.splitlines()]
    for line in (
        "step reward held-out length cut entropy kl stale tokens/s failed fidelity unbridged seconds left",
        "1 0.250 0.500 42 - 1.500 3e-13 - 70 1 100.0% 3 2.0 0:04",
        "2 0.500 0.500 42 25% 1.500 3e-13 1.5 70 2 100.0% 3 2.0 0:02",
    ):
        assert line.split() in cells, "100 characters hold every column"
    assert "held-out" not in text[text.index("tiny · rl_app.py") : text.index("held-out rows at step 1")], "none yet"
    assert "held-out rows at step 0: mean reward 0.500" in text
    assert b"\x1b[" in shown  # drawn in place, not scrolled


def test_progress_inside_a_step_counts_rollouts_failures_and_tokens(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = Report(LoopSettings(agent="rl_app.py", output=str(tmp_path)))
    report.line_seconds = 0.0
    progress = report.part("step 3", 4)
    lost = make_rollout(None, status=Status.SESSION_LOST, action=Action.REFILL, why="session_lost")
    for rollout in (make_rollout(), lost, make_rollout(), make_rollout(), make_rollout()):
        progress.add(rollout)
    lines = re.sub(r"\d+ tokens/s, \d+ s", "…", capfd.readouterr().err).splitlines()
    assert lines == [
        f"step 3: {done} of 4 rollouts, {failed} failed, …" for done, failed in ((1, 0), (1, 1), (2, 1), (3, 1))
    ]
    ahead = report.part("step 4", 4)
    for rollout, show in ((make_rollout(), False), (make_rollout(), True)):
        ahead.add(rollout, show=show)
    assert re.findall(r"step 4: \d of 4", capfd.readouterr().err) == ["step 4: 2 of 4"]
    report.line_seconds = 1e9  # the line of a finished part would only repeat the table's
    report.part("step 4", 2).add(make_rollout())
    assert capfd.readouterr().err == ""


def test_a_resumed_run_says_which_settings_choose_other_rows(tmp_path: Path) -> None:
    now = {"seed": 1, "data": "rows.jsonl", "mix": {"more.jsonl": 0.5}, "learning_rate": 1e-5}
    assert changed_settings(tmp_path, now) == []
    (tmp_path / "run.json").write_text('{"seed": 0, "data": "rows.jsonl", "mix": {}, "learning_rate": 1.0}')
    seed, mix = changed_settings(tmp_path, now)
    assert seed.startswith("warning: seed is 1 but was 0: ")
    assert mix.startswith("warning: mix is {'more.jsonl': 0.5} but was {}: ")
    (tmp_path / "run.json").write_text("{")
    assert changed_settings(tmp_path, now) == []


def test_what_an_agent_says_moves_no_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Report(LoopSettings(agent="rl_app.py", output=str(tmp_path))).say("3 failed: \x1b]0;title\x07boom")
    assert capsys.readouterr().err == "3 failed: \\x1b]0;title\\x07boom\n"
