"""The example of a trainer of one's own: it runs, it weighs rows as it says, and the guide shows it as it is."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentcore_rl_toolkit.engine.tiny import path as tiny_path
from support.agent import PROLOGUE
from support.process import clean_env
from support.rollouts import make_group, make_rollout, make_row, weighted

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "own_trainer" / "train.py"
AGENT = (
    PROLOGUE
    + """
import json, random, urllib.request

@app.rollout_entrypoint
def invoke_agent(payload):
    settings = payload["_rollout"]
    body = {"model": settings["model_id"], "messages": [{"role": "user", "content": payload["prompt"]}]}
    request = urllib.request.Request(
        settings["base_url"] + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request).read()
    return {"rewards": random.random()}  # no two are the same, so that every group teaches something
"""
)


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("own_trainer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Constant(torch.nn.Module):  # type: ignore[misc]
    """A policy that gives every token of ten the same chance, whatever came before; the bias can learn."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(10))
        self.device = torch.device("cpu")

    def forward(self, ids: Any) -> Any:
        logits = self.bias.expand(*ids.shape, 10)
        return type("Output", (), {"logits": logits})()


EVEN = float(torch.log(torch.tensor(0.1)))


def test_the_rows_of_a_rollout_count_as_one(example: Any) -> None:
    long = make_row(completion=[4] * 6, logprobs=[EVEN] * 6)
    short = make_row(completion=[4, 5], logprobs=[EVEN] * 2)
    rows = weighted(long, short)
    model = Constant()
    assert float(sum(example.loss_of(model, row, 2.0).detach() for row in rows)) == pytest.approx(-2.0)
    whole = make_row(completion=[4] * 7 + [5], logprobs=[EVEN] * 8)
    gradients = []
    for made in (rows, (whole,)):
        model.zero_grad()
        for row in made:
            example.loss_of(model, row, 2.0).backward()
        gradients.append(model.bias.grad.clone())
    assert torch.allclose(*gradients, atol=1e-6)


def test_only_sampled_tokens_are_trained_on(example: Any) -> None:
    model = Constant()
    row = make_row(prompt=[1, 2], completion=[4, 9, 9, 5], mask=[1, 0, 0, 1], logprobs=[EVEN, float("nan")] * 2)
    row.logprobs[5] = EVEN
    example.loss_of(model, row, 1.0).backward()
    assert torch.isfinite(model.bias.grad).all()
    rewarded = {token for token in range(10) if model.bias.grad[token] < 0}
    assert rewarded == {4, 5}


def test_the_ratio_is_taken_to_the_sampler(example: Any) -> None:
    """A token that the policy likes more than the sampler did counts more, up to the clip."""
    model, near, far = Constant(), EVEN - 0.1, EVEN - 5.0
    losses = [float(example.loss_of(model, make_row(completion=[4], logprobs=[p]), 1.0).detach()) for p in (near, far)]
    assert losses == pytest.approx([-1.10517, -1.2], abs=1e-4)
    punished = example.loss_of(model, make_row(completion=[4], logprobs=[far]), -1.0)
    assert float(punished.detach()) > 100  # the clip holds back only what is gained


def test_advantages_are_of_the_group_without_its_masked_rollouts(example: Any) -> None:
    from agentcore_rl_toolkit.rollout import Action

    masked = make_rollout(100.0, action=Action.MASK, why="timeout")
    group = make_group(make_rollout(1.0), make_rollout(0.0), masked)
    assert example.advantages(group) == pytest.approx([1.0, -1.0], abs=1e-3)


def test_two_steps(tmp_path: Path) -> None:
    agent, rows = tmp_path / "rl_app.py", tmp_path / "rows.jsonl"
    agent.write_text(AGENT)
    rows.write_text("".join(f'{{"prompt": "say {n}"}}\n' for n in range(3)))
    sizes = ["--steps", "2", "--rows-per-step", "1", "--n", "4", "--max-tokens", "8"]
    command = [sys.executable, str(SCRIPT), str(agent), str(rows), "--output", str(tmp_path / "run"), *sizes]
    environment = clean_env(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["step 1: 4 rollouts", "step 2: 4 rollouts"]
    assert len(list((tmp_path / "run" / "own").glob("*/*.json"))) == 8
    before, after = (load_file(os.path.join(folder, "model.safetensors")) for folder in (tiny_path(), tmp_path / "run"))
    assert any(not torch.equal(before[name].float(), after[name]) for name in after if name in before)


def test_the_guide_shows_the_file() -> None:
    guide = (ROOT / "docs" / "guides" / "bring-your-own-trainer.md").read_text()
    assert guide.split("```python\n")[1].split("```")[0] == SCRIPT.read_text()


def test_it_has_less_than_60_lines_of_code() -> None:
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(SCRIPT.read_text()).readline):
        if token.type not in skipped and not (token.type == tokenize.STRING and token.string.startswith('"""')):
            lines |= set(range(token.start[0], token.end[0] + 1))
    assert len(lines) < 60
