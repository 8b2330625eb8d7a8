"""`agentcore-rl train --backend sagemaker` against a control plane made from botocore's service models."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.agent.sagemaker.job_rollout import with_row
from agentcore_rl_toolkit.backends.sagemaker import SagemakerSettings, train
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.errors import AgentCoreRLError, AwsRefused, ConfigError
from agentcore_rl_toolkit.rollout.run_folder.run_lock import is_written_to
from support.fake_sagemaker_jobs import AGENT, HUB_ARN, MLFLOW, MODEL, PACKAGE, ROLE, FakeSagemakerJobs
from support.runtime import eventually

ROWS = [{"prompt": "2+2", "answer": "4"}, {"prompt": "é?", "answer": "none"}]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSagemakerJobs]:
    with FakeSagemakerJobs().serving() as fake:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def known(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {
        "agent": AGENT,
        "data": str(tmp_path / "rows.jsonl"),
        "model": MODEL,
        "role_arn": ROLE,
        "store": "bucket",
        "output": str(tmp_path / "math run"),
        "poll_seconds": 0.01,
    }


def options(known: dict[str, Any]) -> list[str]:
    flags = [word for name in known if name != "agent" for word in (f"--{name.replace('_', '-')}", str(known[name]))]
    return ["train", "--backend", "sagemaker", known["agent"], *flags]


def document(fake: FakeSagemakerJobs) -> dict[str, Any]:
    [job] = fake.of("CreateJob")
    found: dict[str, Any] = json.loads(job["JobConfigDocument"])
    return found


def test_a_job_is_made_followed_and_summarized(
    known: dict[str, Any], fake: FakeSagemakerJobs, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.log = ["one", "two", "three", "four", "five"]
    fake.story[1][2]["MlflowDetails"] = fake.story[2][2]["MlflowDetails"] = {"RunId": "run"}
    fake.history = {"rollout/reward/mean": [(1, 0.25), (2, 0.5)], "rollout/turns/mean": [(1, 2.0), (2, 3.0)]}
    assert main([*options(known), "--mlflow", MLFLOW, "--options", "max_epochs=2", "--eval-data", known["data"]]) == 0
    [job] = fake.of("CreateJob")
    assert (job["JobCategory"], job["JobConfigSchemaVersion"], job["RoleArn"]) == ("AgentRFT", "1.0.0", ROLE)
    assert job["JobName"].startswith("math-run-")
    place = f"s3://bucket/sagemaker/{job['JobName']}"
    assert document(fake) == {
        "AgentConfig": {"BedrockAgentCoreConfig": {"AgentRuntimeArn": AGENT, "Qualifier": "DEFAULT"}},
        "InputDataConfig": [
            {
                "ChannelName": name,
                "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"{place}/data/{name}.jsonl"}},
            }
            for name in ("train", "validation")
        ],
        "OutputDataConfig": {"S3OutputPath": f"{place}/output"},
        "ModelPackageConfig": {
            "OutputModelPackageGroupArn": "arn:aws:sagemaker:us-west-2:123456789012:model-package-group/agentcore-rl",
            "IntermediateCheckpointModelPackageGroupArn": (
                "arn:aws:sagemaker:us-west-2:123456789012:model-package-group/agentcore-rl-checkpoints"
            ),
        },
        "TrainingConfig": {
            "BaseModelArn": HUB_ARN,
            "AcceptEula": False,
            "HyperParameters": {"global_batch_size": 32, "group_size": 8, "max_epochs": 2},
            "MlflowConfig": {"MlflowResourceArn": MLFLOW},
        },
    }
    assert fake.groups == {"agentcore-rl", "agentcore-rl-checkpoints"}
    uploaded = fake.objects["bucket", f"sagemaker/{job['JobName']}/data/train.jsonl"].decode().splitlines()
    rows = [with_row(json.loads(line)) for line in uploaded]  # as the app gives them to the agent
    assert [{name: row[name] for name in ("prompt", "answer")} for row in rows] == ROWS

    folder = Path(known["output"])
    shown = capsys.readouterr()
    summary = json.loads(shown.out)
    assert summary == json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["interrupted"], summary["model_package"]) == ("Completed", False, PACKAGE)
    assert (summary["steps"], summary["reward"], summary["billed_tokens"]) == (2, [0.25, 0.5], {"TrainTokenCount": 11})
    assert (folder / "job.log").read_text().splitlines() == fake.log
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == [{"step": 1, "reward": 0.25, "turns": 2.0}, {"step": 2, "reward": 0.5, "turns": 3.0}]
    said = shown.err.splitlines()
    assert [line for line in said if line in fake.log] == fake.log
    assert f"warning: {len(ROWS)} of {len(ROWS)} held-out rows are training rows too" in said
    assert "InProgress (Training): step 1 of 2" in said
    assert any(line.startswith("step 2: reward 0.5, turns 3") for line in said)


def test_a_dry_run_prints_the_document_and_changes_nothing(
    known: dict[str, Any], fake: FakeSagemakerJobs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*options(known), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    notes = [line for line in shown.splitlines() if line.startswith("#")]
    assert any("is ready; the hub has the model" in line for line in notes)
    printed = json.loads("\n".join(line for line in shown.splitlines() if not line.startswith("#")))
    assert printed["TrainingConfig"]["BaseModelArn"] == HUB_ARN
    assert {name for name, _ in fake.calls} == {"DescribeHubContent"}
    assert not Path(known["output"]).exists()


def test_a_dry_run_without_credentials_says_what_is_not_known(
    known: dict[str, Any], fake: FakeSagemakerJobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    from agentcore_rl_toolkit.backends.base import find

    text = find("sagemaker").plan(SagemakerSettings(**known)).text()
    assert "skipped the checks on AWS" in text
    assert f"hub-content/SageMakerPublicHub/Model/{MODEL}" in text


def test_a_killed_run_follows_the_same_job(known: dict[str, Any], fake: FakeSagemakerJobs) -> None:
    train(SagemakerSettings(**known), say=lambda line: None)
    with pytest.raises(ConfigError, match="has a job already"):
        train(SagemakerSettings(**known))
    following: list[bool] = []
    resumed = SagemakerSettings(**known, resume=True)
    summary = train(resumed, say=lambda line: following.append(is_written_to(resumed.folder)))
    assert summary["model_package"] == PACKAGE
    assert len(fake.of("CreateJob")) == 1
    assert set(following) == {True}, "to look at the run says that it is running"
    assert not is_written_to(resumed.folder)


def test_a_run_that_was_killed_before_its_job_existed_makes_it(known: dict[str, Any], fake: FakeSagemakerJobs) -> None:
    fake.refuse["CreateJob"] = ("AccessDeniedException", "not allowed")
    with pytest.raises(AwsRefused, match="allow your credentials sagemaker:CreateJob"):
        train(SagemakerSettings(**known), say=lambda line: None)
    name = json.loads((Path(known["output"]) / "job.json").read_text())["name"]
    fake.refuse.clear()
    train(SagemakerSettings(**known, resume=True), say=lambda line: None)
    assert list(fake.jobs) == [name]


@pytest.mark.parametrize("stop", [True, False])
def test_ctrl_c_asks_whether_to_stop_the_job(known: dict[str, Any], fake: FakeSagemakerJobs, stop: bool) -> None:
    fake.story = [("InProgress", "Training", {})]
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return stop

    def interrupt() -> None:
        eventually(lambda: len(fake.of("DescribeJob")) > 3, 60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    summary = train(SagemakerSettings(**known), say=lambda line: None, ask=ask)
    thread.join()
    [question] = asked
    assert "stop the job" in question
    assert (summary["interrupted"], summary["status"]) == (True, "Stopped" if stop else "InProgress")
    assert len(fake.of("StopJob")) == stop
    assert json.loads((Path(known["output"]) / "summary.json").read_text()) == summary


def test_without_a_terminal_ctrl_c_leaves_the_job_alone(known: dict[str, Any], fake: FakeSagemakerJobs) -> None:
    fake.story = [("InProgress", "Training", {})]

    def interrupt() -> None:
        eventually(lambda: len(fake.of("DescribeJob")) > 3, 60)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert main(options(known)) == 130
    thread.join()
    assert fake.of("StopJob") == []


def test_a_job_that_fails_is_an_error_with_its_reason(known: dict[str, Any], fake: FakeSagemakerJobs) -> None:
    fake.story, fake.failure = [("Failed", "Failed", {})], "the agent refused 100 % of invokes"
    with pytest.raises(AgentCoreRLError, match="failed: the agent refused 100 % of invokes") as caught:
        train(SagemakerSettings(**known), say=lambda line: None)
    assert "job.log" in str(caught.value)
    assert json.loads((Path(known["output"]) / "summary.json").read_text())["failure"] == fake.failure


def test_a_log_and_figures_that_can_not_be_read_do_not_end_the_run(
    known: dict[str, Any], fake: FakeSagemakerJobs
) -> None:
    fake.refuse = dict.fromkeys(("FilterLogEvents", "CreatePresignedMlflowAppUrl"), ("AccessDeniedException", "no"))
    fake.story[2][2]["MlflowDetails"] = {"RunId": "run"}
    summary = train(SagemakerSettings(**known, mlflow=MLFLOW), say=lambda line: None)
    assert (summary["status"], summary["reward"]) == ("Completed", [])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 7}, "a SageMaker job has no setting steps"),
        ({"env": {"A": "b"}}, "has no setting env\nhint: .*agentcore-rl deploy --env"),
        ({"options": {"a": [1]}}, "the option a must be a number or a text"),
        ({"checkpoint_group": "agentcore-rl"}, "must differ"),
        ({"poll_seconds": 0.0}, "poll_seconds must be more than 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(known: dict[str, Any], wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SagemakerSettings(**known | wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"agent": "rl_app.py"}, "is not the ARN of an AgentCore runtime"),
        ({"agent": "arn:aws:bedrock-agentcore:local:000000000000:runtime/x"}, "is not the ARN of an AgentCore runtime"),
        ({"model": "nobody/has-it"}, "name in SageMaker's hub"),
        ({"model": "unknown"}, "has no model named unknown"),
        ({"role_arn": ""}, "role_arn is missing"),
        ({"store": None}, "s3_output is missing"),
    ],
)
def test_a_job_that_can_not_work_is_refused(
    known: dict[str, Any], fake: FakeSagemakerJobs, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        train(SagemakerSettings(**known | wrong), say=lambda line: None)
    assert "hint:" in str(caught.value)
    assert fake.jobs == {}


def test_a_runtime_that_is_not_ready_is_refused(known: dict[str, Any], fake: FakeSagemakerJobs) -> None:
    fake.runtime_status = "CREATE_FAILED"
    with pytest.raises(ConfigError, match="is CREATE_FAILED"):
        train(SagemakerSettings(**known), say=lambda line: None)
