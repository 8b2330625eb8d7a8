"""The command line of `train`: its options are the settings, and it needs TRL only to train."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.trl.backend import TrlSettings
from agentcore_rl_toolkit.cli import build_parser, main
from agentcore_rl_toolkit.cli.rollouts.train import read_train_arguments
from agentcore_rl_toolkit.errors import ConfigError
from support.agent import SCORED
from support.process import clean_env

WITHOUT = """\
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("trl", "torch", "transformers", "datasets"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
from agentcore_rl_toolkit.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_trl(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *args]
    return subprocess.run(command, capture_output=True, text=True, env=clean_env(COLUMNS="100"))


def settings(*args: str) -> TrlSettings:
    args_, rest = build_parser().parse_known_args(["train", *args])
    _, settings, _ = read_train_arguments(args_.backend, args_.config, rest)
    assert isinstance(settings, TrlSettings)
    return settings


def test_help_needs_no_trl_and_has_every_setting() -> None:
    shown = without_trl("train", "--help")
    assert shown.returncode == 0, shown.stderr
    for spec in dataclasses.fields(TrlSettings):
        if spec.name != "agent":
            assert f"--{spec.name.replace('_', '-')}" in shown.stdout
    assert "(default: 1e-05)" in shown.stdout


def test_training_without_trl_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").touch()
    (tmp_path / "rows.jsonl").write_text("{}\n" * 8)
    done = without_trl("train", str(tmp_path / "rl_app.py"), "--data", str(tmp_path / "rows.jsonl"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "error: training with TRL needs torch, which is not installed",
        "hint: pip install 'agentcore-rl-toolkit[trl]'",
    ]


def test_options_have_the_kinds_of_their_settings() -> None:
    given = settings(
        *("rl_app.py", "--data", "rows.jsonl", "--n", "4", "--learning-rate", "1e-3", "--max-tokens", "9"),
        *("--timeout", "2.5", "--gradient-checkpointing", "--no-resume", "--eval-data", "held.jsonl"),
    )
    assert given == TrlSettings(
        agent="rl_app.py",
        data="rows.jsonl",
        n=4,
        learning_rate=1e-3,
        max_tokens=9,
        timeout=2.5,
        gradient_checkpointing=True,
        eval_data="held.jsonl",
    )


def test_a_file_of_settings_and_the_command_line_wins(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    table = '[failures]\ntimeout = "mask"\ncancelled = "stop"\n'
    config.write_text('agent = "a.py"\ndata = "d.jsonl"\nsteps = 7\nn = 3\nresume = true\n' + table)
    given = settings("--config", str(config), "--steps", "9", "--no-resume", "--failures", "timeout=train")
    assert (given.agent, given.steps, given.n, given.resume) == ("a.py", 9, 3, False)
    assert given.failures == {"timeout": "train", "cancelled": "stop"}
    assert settings("--config", str(config)).failures == {"timeout": "mask", "cancelled": "stop"}
    assert settings("b.py", "--config", str(config)).agent == "b.py"


def test_variables_and_addresses_may_be_given_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_SHELL", "here")
    told = ["--env", "PORT=3", "--env", "OF_THE_SHELL", "--allow", "a:1", "--allow", "b:2", "--memory-mb", "512"]
    _, settings, _ = read_train_arguments("trl", None, ["a.py", "--data", "d", *told])
    assert settings.env == {"PORT": "3", "OF_THE_SHELL": "here"}
    assert (settings.allow, settings.memory_mb) == (("a:1", "b:2"), 512)


def test_failures_may_be_given_several_times() -> None:
    given = settings("a.py", "--data", "d", "--failures", "timeout=train", "--failures", "agent_error=stop")
    assert given.failures == {"timeout": "train", "agent_error": "stop"}
    with pytest.raises(ConfigError, match="--failures timeout: the value is missing") as caught:
        settings("a.py", "--data", "d", "--failures", "timeout")
    assert "hint: write it like timeout=train" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("stepz = 3", "unknown setting 'stepz'"),
        ("steps = ", "is not valid TOML"),
        (None, "can't be read: No such file"),
    ],
)
def test_a_file_that_is_wrong_is_refused(
    tmp_path: Path, text: str | None, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    if text is not None:
        config.write_text(text)
    assert main(["train", "a.py", "--data", "d", "--config", str(config)]) == 1
    assert problem in capsys.readouterr().err


def test_what_every_run_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", "rows.jsonl"]) == 1
    assert (
        "error: agent is missing\nhint: agentcore-rl train AGENT --data rows.jsonl, or set AGENTCORE_AGENT_ARN"
        in capsys.readouterr().err
    )
    assert main(["train", "rl_app.py"]) == 1
    assert "error: there is no file or folder rl_app.py\nhint: name an agent" in capsys.readouterr().err
    assert main(["train", str(tmp_path)]) == 1
    assert f"--data is missing, and {tmp_path}/rows.jsonl does not exist" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").write_text("{}\n")
    assert settings(str(tmp_path)).data == str(tmp_path / "rows.jsonl")


def test_yaml_has_the_same_settings(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("backend: trl\nagent_runtime_arn: a.py\ndata_path: d.jsonl\nsteps: 7\noptions:\n  beta: 0.5\n")
    given = settings(
        "--config", str(config), "--options", "warmup_steps=3", "--options", "optim=sgd", "--data", "e.jsonl"
    )
    assert (given.agent, given.data, given.steps) == ("a.py", "e.jsonl", 7)
    assert given.options == {"beta": 0.5, "warmup_steps": 3, "optim": "sgd"}
    config.write_text("- a\n")
    with pytest.raises(ConfigError, match="has no settings: it holds a list"):
        settings("--config", str(config))
    config.write_text("a: [")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        settings("--config", str(config))


def test_a_dry_run_checks_and_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trl")
    (tmp_path / "rl_app.py").write_text(SCORED)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    args = ["train", str(tmp_path / "rl_app.py"), "--data", str(tmp_path / "rows.jsonl"), "--dry-run"]
    given = [*args, "--rows-per-step", "1", "--output", str(tmp_path / "out"), "--options", "warmup_steps=3"]
    assert main(given) == 0
    printed = capsys.readouterr()
    shown = printed.out
    assert "✓ rollout: completed in 1 model calls and 0 tool calls, with a reward of 0.5" in printed.err
    assert "# data: 1 rows in" in shown
    config = tmp_path / "shown.toml"
    config.write_text(shown)  # what is shown is a file of settings, and means the same
    assert settings("--config", str(config)) == settings(*(word for word in given[1:] if word != "--dry-run"))
    assert not (tmp_path / "out").exists()
    assert main([*args, "--rows-per-step", "2"]) == 1
    assert "has 1 rows, and a step takes 2" in capsys.readouterr().err
    assert main([*args, "--rows-per-step", "1", "--options", "nonsense=1"]) == 1
    assert "TRL refuses its settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import not_a_package", "No module named 'not_a_package'"),
        (SCORED.replace("    ask(payload)", "    payload['missing']"), "ended as agent_error: KeyError: 'missing'"),
        (SCORED.replace('{"rewards": 0.5}', "{}"), "its result has no rewards"),
    ],
)
def test_a_dry_run_fails_if_the_agent_can_not_run_a_row(
    code: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("trl")
    (tmp_path / "rl_app.py").write_text(code)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    given = ["train", str(tmp_path / "rl_app.py"), "--data", str(tmp_path / "rows.jsonl"), "--rows-per-step", "1"]
    assert main([*given, "--dry-run"]) == 1
    printed = capsys.readouterr()
    assert "# data: 1 rows in" in printed.out
    assert said in printed.err


JOB = """
import httpx
import openai
from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()

@app.entrypoint
def invoke_agent(payload):
    metadata = payload["metadata"]
    ids = {"JobArn": metadata["job_arn"], "TrajectoryId": metadata["trajectory_id"]}
    sent = {"X-Amzn-SageMaker-Job-Arn": ids["JobArn"], "X-Amzn-SageMaker-Trajectory-Id": ids["TrajectoryId"]}
    with openai.OpenAI(base_url=metadata["endpoint"] + "/v1", api_key="EMPTY", default_headers=sent) as model:
        asked = [{"role": "user", "content": payload["instance"]["prompt"]}]
        model.chat.completions.create(model=payload["model_name"], messages=asked)
    httpx.post(metadata["endpoint"] + "/complete-rollout", json=ids | {"Status": "ready"}).raise_for_status()
    httpx.post(metadata["endpoint"] + "/update-reward", json=ids | {"Rewards": [0.5]}).raise_for_status()
    return {}

if __name__ == "__main__":
    app.run()
"""


@pytest.mark.parametrize(
    ("code", "given", "said"),
    [
        (SCORED.replace('{"rewards": 0.5}', "{}"), ["--reward", "reward.py:score"], "to be scored by reward.py:score"),
        (JOB, ["--agent-protocol", "sagemaker"], "with a reward of 0.5"),
    ],
)
def test_a_dry_run_invokes_and_scores_as_the_run_will(
    code: str,
    given: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    Path("rl_app.py").write_text(code)
    Path("reward.py").write_text("def score(**fields):\n    return 1.0\n")
    Path("rows.jsonl").write_text('{"prompt": "a"}\n')
    args = ["train", "rl_app.py", "--data", "rows.jsonl", "--rows-per-step", "1", "--dry-run", *given]
    assert main(args) == 0, capsys.readouterr().err
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--teacher", "./nowhere"], "no model found at ./nowhere"),
        (["--store", "rows.jsonl/results"], "results can't be written to rows.jsonl/results"),
        (["--store", "Bad_Name"], "'Bad_Name' is not the name of a store"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_find_later(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    Path("rl_app.py").write_text(SCORED)
    Path("rows.jsonl").write_text('{"prompt": "a"}\n')
    assert main(["train", "rl_app.py", "--data", "rows.jsonl", "--rows-per-step", "1", "--dry-run", *given]) == 1
    assert said in capsys.readouterr().err


def test_other_verbs_still_refuse_what_they_do_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["results", "list", "--nonsense"], ["train", "a.py", "--data", "d", "--nonsense"]):
        with pytest.raises(SystemExit) as caught:
            main(args)
        assert caught.value.code == 2
        assert "unrecognized arguments: --nonsense" in capsys.readouterr().err


ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/mine"


def test_the_runtime_and_its_bucket_come_from_the_environment_or_env_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(f"AGENTCORE_AGENT_ARN={ARN}\nAGENTCORE_S3_BUCKET=in-file\n")
    given = read_train_arguments("rllm", None, ["--data", "rows.jsonl"])[1]
    assert (given.agent, given.store) == (ARN, "in-file")
    monkeypatch.setenv("AGENTCORE_S3_BUCKET", "in-shell")
    assert read_train_arguments("rllm", None, ["--data", "rows.jsonl"])[1].store == "in-shell"
    assert read_train_arguments("rllm", None, ["--data", "rows.jsonl", "--store", "mine"])[1].store == "mine"
    local = read_train_arguments("trl", None, ["rl_app.py", "--data", "rows.jsonl"])[1]
    assert (local.agent, local.store) == ("rl_app.py", None)  # sessions on this machine store results on it


def test_verl_needs_no_agent_if_an_image_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:dev"
    flags = ["--data", "rows.jsonl", "--agent-name", "mine", "--container-uri", image]
    settings = read_train_arguments("verl", None, flags)[1]
    assert (settings.agent, settings.image.name, settings.image.uri) == ("", "mine", image)
