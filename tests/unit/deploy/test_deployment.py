"""What a deployed agent's trainers are told."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from agentcore_rl_toolkit.cli import build_parser
from agentcore_rl_toolkit.cli.rollouts.train import read_train_arguments
from agentcore_rl_toolkit.deploy.deployment import Deployed

ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/math-abcdefghij"


@pytest.mark.parametrize("queue_url", ["https://sqs/q", None])
@pytest.mark.parametrize("trainer", ["trl", "tinker", "verl"])
def test_the_commands_for_trainers_are_commands(trainer: str, queue_url: str | None, folder: Path) -> None:
    text = Deployed("math", ARN, "s3://b/math", "image:1", queue_url).trainer_commands()
    command = text.partition(f"# {trainer}\n")[2].partition("\n#")[0]
    words = command.replace("\\\n", " ").split()
    assert words[:3] == ["agentcore-rl", "train", ARN]
    backend, known, _ = read_train_arguments(words[words.index("--backend") + 1], None, words[2:])
    assert (backend.name, known.agent, known.store, known.sqs_url) == (trainer, ARN, "s3://b/math", queue_url)


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
