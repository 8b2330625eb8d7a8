"""The rollouts that the loop gives a trainer, over a runtime and an engine without an agent and a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.backends.loop.checkpoint_folder import CheckpointFolder
from agentcore_rl_toolkit.backends.loop.report import Report
from agentcore_rl_toolkit.backends.loop.rows.row_order import RowOrder, name_sources
from agentcore_rl_toolkit.backends.loop.training_loop import TrainingLoop
from agentcore_rl_toolkit.backends.settings import LoopSettings
from agentcore_rl_toolkit.engine import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.rollout.run_folder import open_run
from support.fake_judge import FakeJudge
from support.own_runtime import OwnRuntime
from support.tokenizers import make_tokenizer

STEPS = 6
Tool = Callable[[str], Awaitable[None]]
"""What a rollout does after its model call, given its prompt."""


async def at_once(prompt: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True, repr=False)
class OwnSettings(LoopSettings):
    """Rollouts of one model call each; `prompts` has theirs, in the order in which they started."""

    tool: ClassVar[Tool] = staticmethod(at_once)

    def client(self) -> RolloutClient:
        async def work(payload: dict[str, Any]) -> bytes:
            with (self.folder / "prompts").open("a") as file:
                file.write(payload["prompt"] + "\n")
            body = {"model": "scripted", "messages": [{"role": "user", "content": payload["prompt"]}]}
            async with httpx.AsyncClient(timeout=30) as http:
                await http.post(f"{payload['_rollout']['base_url']}/chat/completions", json=body)
            await self.tool(payload["prompt"])
            return json.dumps({"status_code": 200, "rewards": [float(len(payload["prompt"]))]}).encode()

        return RolloutClient(OwnRuntime(work), self.folder / "results", "exp", tps_limit=None)


def run(
    folder: Path, *, tool: Tool = at_once, rows: int = 3, interrupted_at: int | None = None, **settings: Any
) -> tuple[list[list[str]], list[list[str]]]:
    """For each step, the prompts in the order in which they started, and in that of the groups to train on."""
    folder.mkdir()
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts(rows)))
    options = {"rows_per_step": 3, "n": 2, "concurrency": 1, "steps": STEPS} | settings
    kind = type("Settings", (OwnSettings,), {"tool": staticmethod(tool)})
    made: LoopSettings = kind(data=str(data), output=str(folder / "run"), **options)
    tokenizer = make_tokenizer()
    word = tokenizer.encode("four")[:1]

    def reply(request: SampleRequest) -> list[int]:
        return [*word * len(request.prompt), tokenizer.eos_token_id]

    taken: list[list[str]] = []
    checkpoints = CheckpointFolder(made.folder, lambda path: True, resume=False)
    report = Report(made, quiet=True)
    loop = TrainingLoop(made, report, checkpoints, version=lambda: len(taken), update_engine=lambda step: None)

    def train() -> None:
        for step in range(made.steps):
            groups = loop.groups(step)
            if step == interrupted_at:
                raise KeyboardInterrupt
            taken.append([group.payload["prompt"] for group in groups])
            loop.end_step(step + 1, loop.metrics)

    with checkpoints.opened() as start:
        loop.run(ScriptedEngine(reply), tokenizer, start, train=train, save=lambda: None)
    begun = (made.folder / "prompts").read_text().splitlines()
    return [begun[step * 6 : step * 6 + 6] for step in range(made.steps)], taken


def prompts(rows: int) -> list[str]:
    return [" ".join(["two"] * (1 + row)) for row in range(rows)]


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


LONG = 16
"""Steps, each with rows of its own."""
TOGETHER = {"steps": LONG, "rows": 3 * LONG, "concurrency": 64, "timeout": 60.0, "max_failures": 1}


def first_rows(steps: int) -> list[str]:
    """The first row of each step."""
    order = RowOrder(name_sources([("rows.jsonl", 3 * steps, 1.0)]), 3, seed=OwnSettings.seed)
    return [prompts(3 * steps)[order.step(step)[0]] for step in range(steps)]


@pytest.mark.parametrize("ahead", [1, 3])
def test_stragglers_of_a_step_each_wait_together_as_many_as_steps_run(tmp_path: Path, ahead: int) -> None:
    """In each of 16 steps, a rollout ends only when K + 1 of them run. If such a one ends with its timeout, the run
    takes 16 / (K + 1) timeouts."""
    late, waiting, timeouts = set(first_rows(LONG)), list[asyncio.Event](), []

    async def hang(prompt: str) -> None:
        if prompt not in late:
            return
        late.remove(prompt)  # one rollout of its row
        waiting.append(asyncio.Event())
        if len(waiting) <= ahead:
            await waiting[-1].wait()
            return
        timeouts.append(len(waiting))
        for each in waiting:
            each.set()
        waiting.clear()

    _, taken = run(tmp_path / "run", tool=hang, async_steps=ahead, **TOGETHER)
    assert [len(step) for step in taken] == [3] * LONG
    assert timeouts == [ahead + 1] * (LONG // (ahead + 1))


@pytest.mark.parametrize("ahead", [1, 3])
def test_one_straggler_waits_while_all_rollouts_of_the_steps_ahead_end(tmp_path: Path, ahead: int) -> None:
    """It ends when those of K further steps have ended, so the run takes its timeout once, and no time beside it."""
    at, late, ended, rest = 5, set(first_rows(LONG)[5:6]), list[str](), asyncio.Event()

    async def hang(prompt: str) -> None:
        if prompt in late:
            late.remove(prompt)
            await rest.wait()
        ended.append(prompt)
        if len(ended) == 6 * (at + 1 + ahead) - 1:
            rest.set()

    _, taken = run(tmp_path / "run", tool=hang, async_steps=ahead, **TOGETHER)
    assert [len(step) for step in taken] == [3] * LONG
    assert len(ended) == 6 * LONG
    assert ended.index(first_rows(LONG)[at], ended.index(first_rows(LONG)[at]) + 1) == 6 * (at + 1 + ahead) - 1
