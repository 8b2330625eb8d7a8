"""`agentcore-rl train --backend tinker` against a server of Tinker's wire, whose policy learns."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("tinker")

from agentcore_rl_toolkit.backends.loop.rows.row_order import RowOrder, name_sources
from agentcore_rl_toolkit.backends.loop.training_loop import delay_interrupt
from agentcore_rl_toolkit.backends.tinker import TinkerSettings, train
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.errors import AgentCoreRLError, ConfigError
from agentcore_rl_toolkit.rollout import read_rollouts
from support.fake_tinker import MODEL, FakeTinker
from support.learning_task import task_replies, write_task
from support.process import clean_env
from support.runtime import eventually, shared_runtime


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The task, and the ARN of its agent on this machine."""
    folder = write_task(tmp_path_factory.mktemp("parts"))
    with shared_runtime(folder / "agent" / "rl_app.py", tmp_path_factory.getbasetemp()) as arn:
        (folder / "arn").write_text(arn)
        yield folder


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTinker]:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    with FakeTinker(task_replies()).serving() as fake:
        yield fake


def settings(parts: Path, output: Path, fake: FakeTinker, **more: Any) -> TinkerSettings:
    known: dict[str, Any] = {
        "agent": (parts / "arn").read_text(),
        "data": str(parts / "rows.jsonl"),
        "model": MODEL,
        "tokenizer": str(parts / "tokenizer"),
        "base_url": fake.url,
        "output": str(output),
        "steps": 2,
        "rows_per_step": 2,
        "n": 4,
        "learning_rate": 0.3,
        "concurrency": 8,
        "max_failures": 100,
        "save_every": 1,
    }
    return TinkerSettings(**known | more)


def options(given: TinkerSettings) -> list[str]:
    """The settings as a command line has them."""
    changed = {name: value for name, value in vars(given).items() if name != "agent" and value not in ({}, (), None)}
    flags: list[str] = []
    for name, value in changed.items():
        flag = name.replace("_", "-")
        flags += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return ["train", "--backend", "tinker", given.agent, *flags]


def lines(output: Path) -> list[dict[str, Any]]:
    path = output / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_policy_learns_and_every_file_is_there(
    parts: Path, tmp_path: Path, fake: FakeTinker, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, sent = tmp_path / "run", list[tuple[int, dict[str, float]]]()
    trackio = ModuleType("trackio")
    trackio.__dict__.update(init=lambda **_: None, log=lambda figures, step: sent.append((step, figures)))
    trackio.__dict__.update(finish=lambda: None)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    held_out = str(parts / "held_out.jsonl")
    more = {"eval_data": held_out, "eval_every": 2, "eval_samples": 8, "report_to": "trackio"}
    given = settings(parts, output, fake, steps=4, learning_rate=0.5, **more)
    summary = train(given)
    right, wrong, broken = fake.trained.numbers  # all were 0
    assert right - wrong > 2
    assert broken == pytest.approx(0.0, abs=1e-5)  # failed rollouts are in no mean and no gradient
    assert summary["after"] > summary["before"]
    assert (summary["steps"], summary["interrupted"], summary["rollouts"]) == (4, False, 32)
    assert summary["fidelity"] == 1.0
    assert summary["failures"]["agent_error"]
    assert fake.losses == ["importance_sampling"] * len(fake.optimizer)
    assert fake.optimizer[0]["learning_rate"] == 0.5
    assert fake.finished == [{"reason": {"type": "success"}, "detail": None}]

    evaluations = sorted(path.name for path in (output / "evaluations").iterdir())
    assert evaluations == ["step-000000.jsonl", "step-000002.jsonl", "step-000004.jsonl"]
    for step in range(4):
        rollouts = list(read_rollouts(output / "rollouts" / f"step-{step:06d}.jsonl"))
        assert len(rollouts) == 8
        assert {v for r in rollouts for row in r.rows for v, _, _ in row.versions} == {str(step)}
    assert [line["step"] for line in lines(output)] == [1, 2, 3, 4]
    assert [(step, figures["reward"]) for step, figures in sent] == [(n["step"], n["reward"]) for n in lines(output)]
    learned = next(line for line in lines(output) if line["rows/trained"])
    assert learned["rows/run"] == learned["rollouts/trained"]
    assert learned["sampler/ratio_max"] == pytest.approx(1.0, abs=1e-6)  # the sampler has the trainer's weights
    assert {"reward", "loss/loss:sum", "optimizer/grad_norm", "seconds/update", "fidelity"} <= learned.keys()

    kept = sorted(path.name for path in (output / "checkpoints").iterdir())
    assert kept == ["checkpoint-3", "checkpoint-4"]
    checkpoint = json.loads((output / "checkpoints" / "checkpoint-4" / "tinker.json").read_text())
    assert checkpoint["model"] == MODEL
    assert fake.saved[checkpoint["state"]] == fake.saved[checkpoint["sampler"]] == fake.trained
    assert set(fake.saved) == {
        json.loads((output / "checkpoints" / name / "tinker.json").read_text())[kind]
        for name in kept
        for kind in ("state", "sampler")
    }


@pytest.fixture
def cut_off(parts: Path, tmp_path: Path, fake: FakeTinker) -> Path:
    """The output of a run that was killed in the middle of a step, its second or later."""
    output = tmp_path / "run"
    held_out, agent = str(parts / "held_out.jsonl"), str(parts / "agent" / "rl_app.py")  # in sessions that end with it
    given = settings(parts, output, fake, steps=400, eval_data=held_out, agent=agent)
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", *options(given)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=clean_env())
    try:
        there = output / "rollouts" / "step-000001.jsonl"  # in the middle of the step after a checkpoint
        eventually(lambda: process.poll() is not None or there.exists(), 200)
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return output


def test_going_on_after_a_kill_counts_every_step_once(
    parts: Path, cut_off: Path, fake: FakeTinker, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="has a run already"):
        train(settings(parts, cut_off, fake))
    last = max(int(path.name.rpartition("-")[2]) for path in (cut_off / "checkpoints").glob("checkpoint-*"))
    state = json.loads((cut_off / "checkpoints" / f"checkpoint-{last}" / "tinker.json").read_text())["state"]
    before, total, earlier = fake.saved[state], last + 2, len(fake.optimizer)
    given = settings(parts, cut_off, fake, steps=total, resume=True, eval_data=str(parts / "held_out.jsonl"))
    assert main(options(given)) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == total
    assert [line["step"] for line in lines(cut_off)] == list(range(1, total + 1))
    assert fake.trained.steps == before.steps + len(fake.optimizer) - earlier  # went on from the checkpoint's weights
    files = sorted((cut_off / "rollouts").iterdir())
    assert [file.name for file in files] == [f"step-{step:06d}.jsonl" for step in range(total)]
    rollouts = [rollout for file in files for rollout in read_rollouts(file)]
    assert len({rollout.session_id for rollout in rollouts}) == len(rollouts) == 8 * total
    prompts = [sorted({r.payload["prompt"] for r in read_rollouts(file)}) for file in files]
    assert len({tuple(pair) for pair in prompts}) > 1  # not the first rows again and again
    summary = json.loads((cut_off / "summary.json").read_text())
    assert (summary["rollouts"], len(summary["reward"])) == (8 * total, total)
    assert summary["before"] is not None


def test_rollouts_of_later_steps_run_ahead_and_none_becomes_too_old(
    parts: Path, tmp_path: Path, fake: FakeTinker
) -> None:
    given = settings(parts, tmp_path / "run", fake, steps=4, async_steps=2, concurrency=12)
    summary = train(given)
    assert (summary["steps"], summary["rollouts"], summary["fidelity"]) == (4, 32, 1.0)
    assert fake.losses == ["cispo"] * len(fake.optimizer)
    assert fake.losses
    assert fake.loss_configs[0] == {"clip_low_threshold": 0.0, "clip_high_threshold": 2.0}
    rows = [json.loads(line) for line in (parts / "rows.jsonl").read_text().splitlines()]
    order = RowOrder(name_sources([("rows.jsonl", len(rows), 1.0)]), 2, 0)
    for step, line in enumerate(lines(tmp_path / "run")):
        rollouts = list(read_rollouts(tmp_path / "run" / "rollouts" / f"step-{step:06d}.jsonl"))
        wanted = Counter(rows[number]["prompt"] for number in order.step(step) for _ in range(4))
        assert Counter(rollout.payload["prompt"] for rollout in rollouts) == wanted
        ages = {step - int(version) for one in rollouts for row in one.rows for version, _, _ in row.versions}
        assert ages <= {0, 1, 2}
        assert ages == {0} or step > 0
        assert 0 <= line.get("staleness/mean", 0) <= line.get("staleness/max", 0) <= 2
        assert ("off_policy/truncated" in line) == bool(line["rows/trained"])
        if step == 1:
            assert 1 in ages  # four of its rollouts fit beside those of the first step


def test_an_evaluation_that_a_kill_cut_off_is_made_after_resuming(
    parts: Path, tmp_path: Path, fake: FakeTinker
) -> None:
    """A checkpoint is saved before its evaluation."""
    output, held_out = tmp_path / "run", str(parts / "held_out.jsonl")
    train(settings(parts, output, fake, eval_data=held_out, eval_every=1))
    shutil.rmtree(output / "checkpoints" / "checkpoint-2")
    (output / "evaluations" / "step-000001.jsonl").unlink()
    train(settings(parts, output, fake, eval_data=held_out, eval_every=1, resume=True))
    found = {path.name: list(read_rollouts(path)) for path in (output / "evaluations").iterdir()}
    assert sorted(found) == [f"step-{step:06d}.jsonl" for step in range(3)]
    versions = {version for r in found["step-000001.jsonl"] for row in r.rows for version, _, _ in row.versions}
    assert versions == {"1"}


def test_ctrl_c_ends_with_a_checkpoint(
    parts: Path, tmp_path: Path, fake: FakeTinker, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"

    def interrupt() -> None:
        eventually(lambda: len(lines(output)) >= 1, 60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert main(options(settings(parts, output, fake, steps=400, save_every=400))) == 130
    thread.join()
    summary = json.loads((output / "summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["steps"] >= 1
    assert summary["checkpoint"] == str(output / "checkpoints" / f"checkpoint-{summary['steps']}")
    assert "interrupted; saving a checkpoint" in capsys.readouterr().err


def test_ctrl_c_waits_for_the_end_of_an_update() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), delay_interrupt():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        done.append(True)
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_service_that_fails_ends_the_run_with_its_words(parts: Path, tmp_path: Path, fake: FakeTinker) -> None:
    fake.failing["optim_step"] = {"error": "out of adapters", "category": "server"}
    with pytest.raises(AgentCoreRLError, match=r"can't train the weights: .*out of adapters") as caught:
        train(settings(parts, tmp_path / "run", fake, steps=20))
    assert "--resume" in str(caught.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert fake.finished == [{"reason": {"type": "errored"}, "detail": None}]
