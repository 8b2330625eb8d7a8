"""The rollouts that the loop gives a trainer, over a runtime and an engine without an agent and a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.backends.loop.checkpoint_folder import CheckpointFolder
from agentcore_rl_toolkit.backends.loop.report import Report
from agentcore_rl_toolkit.backends.loop.training_loop import TrainingLoop
from agentcore_rl_toolkit.backends.settings import LoopSettings
from agentcore_rl_toolkit.engine import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.rollout.run_folder import open_run
from support.fake_judge import FakeJudge
from support.own_runtime import OwnRuntime
from support.tokenizers import make_tokenizer

STEPS = 6


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnSettings(LoopSettings):
    """Rollouts of one model call each; `prompts` has theirs, in the order in which they started."""

    def client(self) -> RolloutClient:
        async def work(payload: dict[str, Any]) -> bytes:
            with (self.folder / "prompts").open("a") as file:
                file.write(payload["prompt"] + "\n")
            body = {"model": "scripted", "messages": [{"role": "user", "content": payload["prompt"]}]}
            async with httpx.AsyncClient(timeout=30) as http:
                await http.post(f"{payload['_rollout']['base_url']}/chat/completions", json=body)
            return json.dumps({"status_code": 200, "rewards": [float(len(payload["prompt"]))]}).encode()

        return RolloutClient(OwnRuntime(work), self.folder / "results", "exp", tps_limit=None)


def run(folder: Path, interrupted_at: int | None = None, **settings: Any) -> tuple[list[list[str]], list[list[str]]]:
    """For each step, the prompts in the order in which they started, and in that of the groups to train on."""
    folder.mkdir()
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in ("two", "two two", "two two two two")))
    options = {"rows_per_step": 3, "n": 2, "concurrency": 1, "steps": STEPS} | settings
    made = OwnSettings(data=str(data), output=str(folder / "run"), **options)
    tokenizer = make_tokenizer()
    word = tokenizer.encode("four")[:1]

    def reply(request: SampleRequest) -> list[int]:
        return [*word * len(request.prompt), tokenizer.eos_token_id]

    taken: list[list[str]] = []
    checkpoints = CheckpointFolder(made.folder, lambda path: True, resume=False)
    report = Report(made, quiet=True)
    loop = TrainingLoop(made, report, checkpoints, version=lambda: len(taken), update_engine=lambda step: None)

    def train() -> None:
        for step in range(STEPS):
            groups = loop.groups(step)
            if step == interrupted_at:
                raise KeyboardInterrupt
            taken.append([group.payload["prompt"] for group in groups])
            loop.end_step(step + 1, loop.metrics)

    with checkpoints.opened() as start:
        loop.run(ScriptedEngine(reply), tokenizer, start, train=train, save=lambda: None)
    prompts = (made.folder / "prompts").read_text().splitlines()
    return [prompts[step * 6 : step * 6 + 6] for step in range(STEPS)], taken


@pytest.mark.parametrize("ahead", [0, 1])
def test_rows_start_in_the_order_in_which_they_are_trained_on(tmp_path: Path, ahead: int) -> None:
    """Whatever their lengths were before, and at any K: else the order would depend on what else ran when."""
    started, taken = run(tmp_path / "run", async_steps=ahead)
    assert started == [[prompt for prompt in step for _ in range(2)] for step in taken]
    assert len({tuple(step) for step in taken}) > 1, "each epoch has an order of its own"


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_interrupted_run_names_the_rollouts_that_were_not_trained_on(tmp_path: Path, ahead: int) -> None:
    run(tmp_path / "run", interrupted_at=2, async_steps=ahead)
    found = open_run(tmp_path / "run" / "run")
    trained = found.select(phase="train", trained=True)
    assert sorted(found.table["step"][trained].tolist()) == [0] * 6 + [1] * 6
    late = [at for at in found.select(phase="train").tolist() if found.table["step"][at] >= 2]
    assert len(late) >= 6
    assert {found.text("dropped", at) for at in late} == {"the run ended before this step"}


def test_the_judges_cost_is_in_the_summary(tmp_path: Path) -> None:
    with FakeJudge({"reason": "", "score": 7}).serving() as url:
        source = "from agentcore_rl_toolkit.rewards import LLMJudge, WeightedSum\n"
        source += f"judge = LLMJudge('openai:x', rubric='r', base_url={url!r}, api_key='k', price=(1.0, 2.0))\n"
        (tmp_path / "judge.py").write_text(source + "total = WeightedSum([(judge, 1.0)])\n")
        run(tmp_path / "one", reward=f"{tmp_path}/judge.py:judge")
        run(tmp_path / "sum", reward=f"{tmp_path}/judge.py:total")
    used, of_sum = (json.loads((tmp_path / at / "run" / "summary.json").read_text())["used"] for at in ("one", "sum"))
    counts = {"calls": 36, "cached": 0, "input_tokens": 3600, "output_tokens": 360}  # one call for each rollout
    assert used["judge"] == counts | {"dollars": pytest.approx(3600e-6 + 720e-6)}
    assert (used["sessions"], of_sum["judge"]) == (36, used["judge"])
