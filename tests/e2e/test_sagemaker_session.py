"""`agentcore-rl train --backend sagemaker-session` against a server of AWS's wire, whose policy learns."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.sagemaker.session import TrainingSessionSettings, train
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.errors import AgentCoreRLError, ConfigError
from agentcore_rl_toolkit.rollout import read_rollouts
from support.fake_training_session import HUB_ARN, MODEL, ROLE, FakeTrainingSession, ReplyPolicy
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
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTrainingSession]:
    with FakeTrainingSession(ReplyPolicy(task_replies())).serving() as fake:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        yield fake


def settings(parts: Path, output: Path, **more: Any) -> TrainingSessionSettings:
    known: dict[str, Any] = {
        "agent": (parts / "arn").read_text(),
        "data": str(parts / "rows.jsonl"),
        "model": MODEL,
        "tokenizer": str(parts / "tokenizer"),
        "role_arn": ROLE,
        "s3_output": "s3://bucket/runs",
        "max_tokens": 64,
        "output": str(output),
        "steps": 2,
        "rows_per_step": 2,
        "n": 4,
        "learning_rate": 0.01,
        "concurrency": 8,
        "max_failures": 100,
        "save_every": 1,
    }
    return TrainingSessionSettings(**known | more)


def options(given: TrainingSessionSettings) -> list[str]:
    """The settings as a command line has them."""
    changed = {name: value for name, value in vars(given).items() if name != "agent" and value not in ({}, (), None)}
    flags: list[str] = []
    for name, value in changed.items():
        flag = name.replace("_", "-")
        flags += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return ["train", "--backend", "sagemaker-session", given.agent, *flags]


def lines(output: Path) -> list[dict[str, Any]]:
    path = output / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_policy_learns_and_every_file_is_there(parts: Path, tmp_path: Path, fake: FakeTrainingSession) -> None:
    fake.policy.scale = 50.0  # the service takes no larger rate than 0.01
    output = tmp_path / "run"
    held_out = str(parts / "held_out.jsonl")
    given = settings(parts, output, steps=4, eval_data=held_out, eval_every=2, eval_samples=8)
    summary = train(given)
    right, wrong, broken = fake.trained.numbers  # all were 0
    assert right - wrong > 2
    assert broken == pytest.approx(0.0, abs=1e-5)  # failed rollouts are in no mean and no gradient
    assert summary["after"] > summary["before"]
    assert (summary["steps"], summary["interrupted"], summary["rollouts"]) == (4, False, 32)
    assert summary["fidelity"] == 1.0
    assert [loss for loss, _ in fake.losses] == ["importance_sampling"] * len(fake.optimizer)
    assert fake.optimizer[0] == {"learningRate": 0.01}

    [created] = fake.of("CreateTrainingSession")
    assert created["ModelConfig"] == {"BaseModelArn": HUB_ARN}
    assert created["LoraConfig"] == {"Rank": 32, "Alpha": 64}
    assert created["OutputConfig"]["S3Location"]["Path"] == f"s3://bucket/runs/{created['TrainingSessionName']}"
    assert [number for number, _ in fake.executed] == list(range(1, len(fake.executed) + 1))
    assert {session.status for session in fake.sessions.values()} == {"Stopped"}
    assert None not in fake.sampled_from  # each request names its weights

    for step in range(4):
        rollouts = list(read_rollouts(output / "rollouts" / f"step-{step:06d}.jsonl"))
        assert len(rollouts) == 8
        assert {v for r in rollouts for row in r.rows for v, _, _ in row.versions} == {str(step)}
    learned = next(line for line in lines(output) if line["rows/trained"])
    assert learned["sampler/ratio_max"] == pytest.approx(1.0, abs=1e-6)  # the sampler has the trainer's weights
    assert {"reward", "loss/loss", "optimizer/grad_norm", "seconds/update", "fidelity"} <= learned.keys()

    kept = sorted(path.name for path in (output / "checkpoints").iterdir())
    assert kept == ["checkpoint-3", "checkpoint-4"]
    saved = [json.loads((output / "checkpoints" / name / "session.json").read_text()) for name in kept]
    assert set(fake.packages) == {names[kind] for names in saved for kind in ("state", "sampler")}  # no others are left
    assert fake.packages[saved[1]["state"]][0] == fake.packages[saved[1]["sampler"]][0] == fake.trained
    assert summary["saved"] == saved[1]
    assert saved[1]["billed_tokens"] == {"prefill": 5, "sample": 7, "training": 9}
    assert json.loads((output / "summary.json").read_text())["saved"] == saved[1]


def test_a_killed_run_goes_on_in_a_new_session(
    parts: Path, tmp_path: Path, fake: FakeTrainingSession, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    given = settings(parts, output, steps=400, agent=str(parts / "agent" / "rl_app.py"))  # in sessions that end with it
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", *options(given)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=clean_env() | fake.env)
    try:
        there = output / "rollouts" / "step-000001.jsonl"  # in the middle of the step after a checkpoint
        eventually(lambda: process.poll() is not None or there.exists(), 200)
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with pytest.raises(ConfigError, match="has a run already"):
        train(settings(parts, output))
    last = max(int(path.name.rpartition("-")[2]) for path in (output / "checkpoints").glob("checkpoint-*"))
    state = json.loads((output / "checkpoints" / f"checkpoint-{last}" / "session.json").read_text())["state"]
    before, earlier, total = fake.packages[state][0], len(fake.optimizer), last + 2
    [first] = fake.sessions
    assert fake.sessions[first].status == "Running"
    assert main(options(settings(parts, output, steps=total, resume=True))) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == total
    assert fake.sessions[first].status == "Stopped"  # nobody else would stop it
    assert len(fake.sessions) == 2
    loads = [config for _, config in fake.calls if "loadState" in config.get("operationConfig", {})]
    assert [one["operationConfig"]["loadState"] for one in loads] == [{"modelPackageArn": state, "loadOptimizer": True}]
    assert fake.trained.steps == before.steps + len(fake.optimizer) - earlier  # went on from the checkpoint's weights
    assert [line["step"] for line in lines(output)] == list(range(1, total + 1))
    files = sorted((output / "rollouts").iterdir())
    rollouts = [rollout for file in files for rollout in read_rollouts(file)]
    assert len({rollout.session_id for rollout in rollouts}) == len(rollouts) == 8 * total


def test_operations_survive_throttling_failures_and_lost_answers(
    parts: Path, tmp_path: Path, fake: FakeTrainingSession
) -> None:
    """Each is executed once, in order: a lost answer is asked for again with the same client token."""
    asked: Counter[str] = Counter()
    turns = ("ThrottlingException", *(None,) * 6, "InternalServerException", *(None,) * 6, "cut", *(None,) * 6)

    def fault(operation: str) -> str | None:
        asked[operation] += 1
        if operation == "ExecuteTrainingOperation answered":
            return "cut" if asked[operation] % 3 == 1 else None
        return None if operation.endswith("answered") else turns[asked[operation] % len(turns)]

    fake.faults = fault
    summary = train(settings(parts, tmp_path / "run", save_every=10))
    assert (summary["steps"], summary["rollouts"], summary["fidelity"]) == (2, 16, 1.0)
    assert [number for number, _ in fake.executed] == list(range(1, len(fake.executed) + 1))
    kinds = Counter(kind for _, kind in fake.executed)
    assert kinds["forwardBackward"] == kinds["optimizerStep"] == len(fake.optimizer) >= 1
    tokens = [one["clientToken"] for one in fake.of("ExecuteTrainingOperation")]
    assert len(tokens) > len(set(tokens)) == len(fake.executed)


def test_rollouts_of_later_steps_run_ahead_with_certain_versions(
    parts: Path, tmp_path: Path, fake: FakeTrainingSession
) -> None:
    summary = train(settings(parts, tmp_path / "run", steps=4, async_steps=2, concurrency=12))
    assert (summary["steps"], summary["rollouts"], summary["fidelity"]) == (4, 32, 1.0)
    assert fake.losses[0] == ("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": 2.0})
    for step, line in enumerate(lines(tmp_path / "run")):
        rollouts = list(read_rollouts(tmp_path / "run" / "rollouts" / f"step-{step:06d}.jsonl"))
        ages = {step - int(version) for one in rollouts for row in one.rows for version, _, _ in row.versions}
        assert ages <= {0, 1, 2}
        assert ("off_policy/truncated" in line) == bool(line["rows/trained"])
    assert None not in fake.sampled_from


def test_ctrl_c_ends_with_a_checkpoint_and_a_stopped_session(
    parts: Path, tmp_path: Path, fake: FakeTrainingSession, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"

    def interrupt() -> None:
        eventually(lambda: len(lines(output)) >= 1, 60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert main(options(settings(parts, output, steps=400, save_every=400))) == 130
    thread.join()
    summary = json.loads((output / "summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["checkpoint"] == str(output / "checkpoints" / f"checkpoint-{summary['steps']}")
    assert summary["saved"]["state"] in fake.packages
    assert {session.status for session in fake.sessions.values()} == {"Stopped"}
    assert "interrupted; saving a checkpoint" in capsys.readouterr().err


def test_an_operation_that_fails_ends_the_run_with_its_words(
    parts: Path, tmp_path: Path, fake: FakeTrainingSession
) -> None:
    fake.failing["optimizerStep"] = "out of memory"
    with pytest.raises(AgentCoreRLError, match=r"can't train the weights: .*out of memory") as caught:
        train(settings(parts, tmp_path / "run", steps=20))
    assert "--resume" in str(caught.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert {session.status for session in fake.sessions.values()} == {"Stopped"}
    assert fake.packages == {}


def test_a_session_that_does_not_start_is_stopped(parts: Path, tmp_path: Path, fake: FakeTrainingSession) -> None:
    fake.start_as = "Failed"
    with pytest.raises(AgentCoreRLError, match="did not start: no capacity"):
        train(settings(parts, tmp_path / "run"))
    assert len(fake.of("StopTrainingSession")) == 1
