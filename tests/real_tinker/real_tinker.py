"""A real server: sampling, a step, checkpoints, going on from one, and a reward that moves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.tinker import TinkerSettings, train
from agentcore_rl_toolkit.engine import IDS, Sampled, SampleRequest, Sampling, tiny
from agentcore_rl_toolkit.engine.services.tinker import TinkerEngine
from agentcore_rl_toolkit.errors import EngineError
from agentcore_rl_toolkit.rollout import read_rollouts

EXAMPLE = Path(__file__).parents[2] / "examples" / "strands_math_agent"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Word problems, and held-out ones."""
    folder = tmp_path_factory.mktemp("rows")
    for split, count in (("train", 64), ("held-out", 16)):
        command = [sys.executable, str(EXAMPLE / "problems.py"), split, str(count)]
        made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (folder / f"{split}.jsonl").write_text(made)
    return folder


def settings(rows: Path, output: Path, **more: object) -> TinkerSettings:
    known = {
        "agent": str(EXAMPLE / "rl_app.py"),
        "data": str(rows / "train.jsonl"),
        "model": "tiny",
        "output": str(output),
        "steps": 7,
        "rows_per_step": 8,
        "n": 8,
        "learning_rate": 2e-3,
        "max_tokens": 64,
        "concurrency": 32,
        "save_every": 3,
    }
    return TinkerSettings.from_mapping(known | more)


async def _sample(weights: str, **sampling: object) -> Sampled:
    engine = TinkerEngine(weights)
    await engine.start()
    try:
        prompt = array(IDS, range(5, 25))
        [sampled] = [one async for one in engine.sample(SampleRequest(prompt, Sampling(**sampling)))]  # type: ignore[arg-type]
        return sampled
    finally:
        await engine.close()


def test_the_reward_moves_and_a_run_goes_on(rows: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    held_out = {"eval_data": str(rows / "held-out.jsonl"), "eval_samples": 2}
    first = train(settings(rows, output, steps=3, **held_out))
    assert first["fidelity"] == 1.0
    again = train(settings(rows, output, resume=True, **held_out))
    rewards = [round(reward, 3) for reward in again["reward"]]
    print("\nreward", rewards, "held-out", again["before"], again["after"])  # noqa: T201
    assert again["steps"] == len(again["reward"]) == 7
    # Over the same rows before and after; those of two steps differ in how hard they are by as much as is learned.
    assert again["after"] > again["before"] + 0.3

    for step in range(7):
        rollouts = list(read_rollouts(output / "rollouts" / f"step-{step:06d}.jsonl"))
        assert {v for r in rollouts for row in r.rows for v, _, _ in row.versions} == {str(step)}
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert max(line["sampler/ratio_max"] for line in lines) < 1.001  # what samples is what is trained

    assert {path.name for path in (output / "checkpoints").iterdir()} == {"checkpoint-6", "checkpoint-7"}
    checkpoint = json.loads((Path(again["checkpoint"]) / "tinker.json").read_text())
    sampled = asyncio.run(_sample(checkpoint["sampler"], max_tokens=4, ignore_eos=True))
    assert (len(sampled.token_ids), sampled.finish) == (4, "length")
    assert all(logprob is not None and logprob <= 0 for logprob in sampled.logprobs)


def test_the_engine_samples_from_a_base_model() -> None:
    sampled = [asyncio.run(_sample(str(tiny.path()), max_tokens=8, temperature=0.0)) for _ in range(2)]
    assert sampled[0].token_ids == sampled[1].token_ids
    with pytest.raises(EngineError, match="min_p") as caught:
        asyncio.run(_sample(str(tiny.path()), max_tokens=8, min_p=0.1))
    assert caught.value.status == 400
