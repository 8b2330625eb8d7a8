"""What a deployed agent's trainers are told: each snippet describes a run that its backend accepts."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.rllm.check_overrides import check_overrides
from agentcore_rl_toolkit.backends.verl.backend import BACKEND as VERL
from agentcore_rl_toolkit.backends.verl.backend import VerlSettings
from agentcore_rl_toolkit.cli import build_parser
from agentcore_rl_toolkit.cli.rollouts.train import read_train_arguments
from agentcore_rl_toolkit.deploy.deployment import Deployed
from support.rllm import rllm_here
from support.slime import PLACE

__all__ = ["rllm_here"]

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math-abcdefghij"


@pytest.mark.parametrize("queue_url", ["https://sqs/q", None])
@pytest.mark.parametrize("trainer", ["trl", "tinker", "verl"])
def test_the_commands_for_trainers_are_commands(trainer: str, queue_url: str | None, rows: None) -> None:
    if trainer == "trl":
        pytest.importorskip("trl")
    words = words_of(snippet(trainer, queue_url))
    assert words[:3] == ["agentcore-rl", "train", ARN]
    backend, known, _ = read_train_arguments(words[words.index("--backend") + 1], None, words[2:])
    assert (backend.name, known.agent, known.store, known.sqs_url) == (trainer, ARN, "s3://results/math", queue_url)
    assert f"agent: {ARN}, on AWS" in backend.plan(known).notes


def test_verls_overrides_are_a_run(rows: None) -> None:
    texts = words_of(snippet("or, as overrides of a verl command of your own:"))
    overrides = dict(text.split("=", 1) for text in texts)
    assert overrides.pop("actor_rollout_ref.rollout.name") == "agentcore"
    given = {name.removeprefix("actor_rollout_ref.rollout.agentcore."): value for name, value in overrides.items()}
    port = int(given.pop("gateway_port"))
    settings = VerlSettings.from_mapping({**given, "gateway_port": port, "data": "rows.jsonl", "model": "tiny"})
    assert VERL.plan(settings).notes[0].startswith("agent: the runtime math, created or updated from 123456789012.")


def test_slimes_runner_is_a_run(rows: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIME_DIR", str(PLACE))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"num_hidden_layers": 24, "hidden_size": 896}))
    code = snippet("slime").replace("/models/Qwen3-4B", str(model)).replace("qwen3-4B", "qwen2.5-0.5B")
    found: dict[str, object] = {}
    exec(code.replace("SlimeRunner(", "plan = SlimeRunner(").replace(").train()", ").plan()"), found)
    assert f"agent: {ARN}, on AWS" in found["plan"].notes  # type: ignore[attr-defined]


@pytest.mark.usefixtures("rllm_here")
def test_rllms_overrides_are_rllms() -> None:
    texts = words_of(snippet("rllm"))
    assert len(texts) == 6
    check_overrides("tinker", ["rllm/backend=tinker", *texts])


def snippet(title: str, queue_url: str | None = None) -> str:
    """What `deploy` prints under a title."""
    image = "123456789012.dkr.ecr.us-west-2.amazonaws.com/math:1"
    text = Deployed("math", ARN, "s3://results/math", image, queue_url).trainer_commands()
    return text.partition(f"# {title}\n")[2].partition("\n#")[0]


def words_of(text: str) -> list[str]:
    return text.replace("\\\n", " ").split()


@pytest.fixture
def rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data that the snippets name, in the working directory, and no other place for sessions than AWS."""
    monkeypatch.delenv("AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", raising=False)
    lines = [json.dumps({"prompt": f"q{n}", "answer": str(n)}) for n in range(64)]
    Path("rows.jsonl").write_text("\n".join(lines))


def test_the_guides_commands_are_commands() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "deploy.md").read_text()
    lines = [line.partition("#")[0].split() for line in page.splitlines() if line.startswith("agentcore-rl ")]
    assert len(lines) >= 6
    for words in lines:
        assert build_parser().parse_args(words[1:]).verb == words[1]
    for option in re.findall(r"`(--[a-z-]+)", page):
        assert any(option in verb.format_help() for verb in _verbs()), option


def _verbs() -> list[argparse.ArgumentParser]:
    (subparsers,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return list(subparsers.choices.values())
