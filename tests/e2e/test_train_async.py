"""`--async-steps`: rollouts of later steps run while training does, and none is lost, doubled or too old."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from agentcore_rl_toolkit.backends.loop.report import Report
from agentcore_rl_toolkit.backends.loop.rows.row_order import RowOrder, name_sources
from agentcore_rl_toolkit.backends.trl import train
from agentcore_rl_toolkit.backends.trl.backend import TrlSettings
from agentcore_rl_toolkit.backends.trl.grpo_config import load_policy, trl_config
from agentcore_rl_toolkit.backends.trl.trainer import AgentGRPOTrainer
from agentcore_rl_toolkit.engine.transformers import TransformersEngine
from agentcore_rl_toolkit.rollout import Group, Rollout, RolloutRunner, read_rollouts
from agentcore_rl_toolkit.types import Status
from support.agent import ASKING
from support.runtime import eventually, shared_runtime
from support.tokenizers import PLAIN_TEMPLATE, make_tokenizer
from support.training_process import command_line, start_training

pytestmark = pytest.mark.filterwarnings("ignore")  # Transformers' and TRL's, a different one each release

AGENT = (
    ASKING
    + """
import random

@app.rollout_entrypoint
def invoke_agent(payload):
    said = ask(payload)
    if payload["do"] == "hang":
        time.sleep(300)
    if payload["do"] == "score":
        return {"rewards": sum(map(ord, said)) % 7, "response": said}
    time.sleep(random.random() / 5)
    ask(payload)
    return {"rewards": random.random(), "response": said}
"""
)
ROWS = 5


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an agent, a model and rows, and the ARN of the agent on this machine."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("parts")
    tokenizer = make_tokenizer(template=PLAIN_TEMPLATE)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "agent").mkdir()
    (folder / "agent" / "rl_app.py").write_text(AGENT)
    for do in ("vary", "hang", "score"):
        rows = [{"prompt": f"row {n}", "do": do if n == 0 or do == "score" else "vary"} for n in range(ROWS)]
        (folder / f"{do}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with shared_runtime(folder / "agent" / "rl_app.py", tmp_path_factory.getbasetemp()) as arn:
        (folder / "arn").write_text(arn)
        yield folder


def settings(parts: Path, output: Path, do: str = "vary", **more: Any) -> TrlSettings:
    known: dict[str, Any] = {
        "agent": (parts / "arn").read_text(),
        "data": str(parts / f"{do}.jsonl"),
        "model": str(parts / "model"),
        "output": str(output),
        "steps": 4,
        "rows_per_step": 2,
        "n": 2,
        "batch_size": 2,
        "max_tokens": 6,
        "learning_rate": 1e-3,
        "device": "cpu",
        "concurrency": 6,
        "save_every": 2,
        "async_steps": 2,
    }
    return TrlSettings(**known | more)


def own_agent(parts: Path) -> str:
    """The agent on a runtime of the run's own, whose sessions end with it."""
    return str(parts / "agent" / "rl_app.py")


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def rollouts_of(output: Path) -> list[list[Rollout]]:
    """The rollouts of each step."""
    return [list(read_rollouts(path)) for path in sorted((output / "rollouts").iterdir())]


def ages(step: int, rollouts: list[Rollout]) -> set[int]:
    return {step - int(version) for r in rollouts for row in r.rows for version, _, _ in row.versions}


def check_every_row_once(given: TrlSettings) -> None:
    """Each step has its rows, each of them `n` times, and each step was counted once."""
    output, rows = Path(given.output), [json.loads(line) for line in Path(given.data).read_text().splitlines()]
    steps = rollouts_of(output)
    assert [line["step"] for line in lines(output)] == list(range(1, given.steps + 1))
    assert len(steps) == given.steps
    order = RowOrder(name_sources([("rows.jsonl", len(rows), 1.0)]), given.rows_per_step, given.seed)
    for step, rollouts in enumerate(steps):
        wanted = Counter(rows[number]["prompt"] for number in order.step(step))
        assert Counter(r.payload["prompt"] for r in rollouts) == {name: given.n * k for name, k in wanted.items()}
    assert len({r.session_id for rollouts in steps for r in rollouts}) == given.steps * given.rows_per_step * given.n


def test_no_token_is_older_than_it_may_be_and_every_row_is_trained_on_once(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text('{"prompt": "new", "do": "vary"}\n')
    given = settings(parts, tmp_path / "run", steps=6, eval_data=str(held_out), eval_every=3)
    report = Report(given)
    report.line_seconds = 0.0
    summary = train(given, report=report)
    assert (summary["steps"], summary["trained"], summary["fidelity"]) == (6, 24, 1.0)
    assert "step 1: 3 of 4 rollouts, 0 failed" in capsys.readouterr().err
    check_every_row_once(given)
    found = [ages(step, rollouts) for step, rollouts in enumerate(rollouts_of(tmp_path / "run"))]
    assert found[0] == {0}
    assert max(map(max, found)) <= 2
    assert 1 in found[1]  # two of its rollouts fit beside those of the first step
    assert min(map(min, found)) >= 0
    for line, known in zip(lines(tmp_path / "run"), found, strict=True):
        assert line["staleness/max"] == max(known)
        assert 0 <= line["staleness/mean"] <= line["staleness/max"] <= 2
        assert 0 <= line["slots_used"] <= 1 + 1e-9  # 0 if all rollouts had ended before the step before
        assert line["off_policy/ratio"] == pytest.approx(1.0, abs=0.3)
        assert line["off_policy/truncated"] == 0.0
        assert line["cispo_clip_ratio"] == 0.0
    for step in (3, 6):  # held-out rows are run with the weights they are counted for
        (rollout,) = read_rollouts(tmp_path / "run" / "evaluations" / f"step-{step:06d}.jsonl")
        assert ages(step, [rollout]) == {0}


def test_without_async_steps_the_trainer_alone_samples_and_trains_the_same_to_the_bit(
    parts: Path, tmp_path: Path
) -> None:
    """Over a runner that runs each step when the trainer asks for it, one rollout after the other."""
    import transformers
    from safetensors.torch import load_file

    given = settings(parts, tmp_path / "run", "score", async_steps=0, concurrency=1)
    train(given, report=Report(given, quiet=True))
    alone = settings(parts, tmp_path / "alone", "score", async_steps=0, concurrency=1)
    transformers.set_seed(alone.seed)
    model, tokenizer = load_policy(alone)
    rows = [json.loads(line) for line in Path(alone.data).read_text().splitlines()]
    order = RowOrder(name_sources([("rows.jsonl", len(rows), 1.0)]), alone.rows_per_step, alone.seed)
    sampled: list[list[Group]] = []

    def run_groups(_: list[dict[str, Any]], n: int, step: int) -> list[Group]:
        engine.update(str(step))
        found = runner.run([rows[number] for number in order.step(step)], seed=f"{alone.seed}/train/{step}/0")
        sampled.append(sorted(found, key=lambda group: group.index))
        return sampled[-1]

    trainer = AgentGRPOTrainer(model, rows, run_groups, trl_config(alone), processing_class=tokenizer)
    trainer.at_temperature = True
    engine = TransformersEngine(model, tokenizer=tokenizer, name=alone.model, at_temperature=True)
    options = alone.rollout_options(alone.model, lambda: int(trainer.state.global_step))
    with (
        alone.open_gateway(engine, tokenizer) as gateway,
        alone.client() as client,
        contextlib.closing(RolloutRunner(client, gateway, options)) as runner,
    ):
        trainer.train()

    def bits(rollouts: Iterable[Rollout]) -> list[Any]:
        return [(row.token_ids.tobytes(), row.logprobs.tobytes()) for one in rollouts for row in one.rows]

    for groups, rollouts in zip(sampled, rollouts_of(tmp_path / "run"), strict=True):
        kept = sorted(rollouts, key=lambda one: (one.group, one.sample))
        assert bits(kept) == bits(one for group in groups for one in group.rollouts)
    latest = load_file(tmp_path / "run" / "checkpoints" / f"checkpoint-{given.steps}" / "model.safetensors")
    before = load_file(parts / "model" / "model.safetensors")
    assert any(not weights.equal(before[name]) for name, weights in latest.items()), "it was trained"
    weights = model.state_dict()
    assert all(value.cpu().equal(weights[name].cpu()) for name, value in latest.items())


def test_a_tokens_version_names_the_weights_that_sampled_it(parts: Path, tmp_path: Path) -> None:
    """Weights change in the middle of replies. After that, a reply goes on from keys and values of earlier weights, so
    only its tokens before are compared."""
    import torch
    from transformers import Qwen3ForCausalLM

    given = settings(parts, tmp_path / "run", max_tokens=200, learning_rate=0.05, save_every=1, keep=9)
    train(given, report=Report(given, quiet=True))
    folders = {f"{step}": tmp_path / "run" / "checkpoints" / f"checkpoint-{step}" for step in range(1, given.steps)}
    models = {name: Qwen3ForCausalLM.from_pretrained(path) for name, path in ({"0": parts / "model"} | folders).items()}
    for row in (row for rollouts in rollouts_of(tmp_path / "run") for one in rollouts for row in one.rows):
        (name, start, end), ids = row.versions[0], torch.tensor([row.token_ids.tolist()])
        with torch.no_grad():
            found = models[name](ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        sampled = torch.tensor(row.loss_mask[start:end]).bool()
        known = torch.tensor(row.logprobs[start:end])
        torch.testing.assert_close(known[sampled], found[start - 1 : end - 1][sampled], atol=1e-4, rtol=1e-4)


def test_a_row_that_never_ends_times_out_in_its_own_steps(parts: Path, tmp_path: Path) -> None:
    """Its rollouts are counted there, once; the other row of the step is trained on."""
    given = settings(parts, tmp_path / "run", "hang", steps=5, timeout=6, async_steps=4, max_failures=99)
    train(given, report=Report(given, quiet=True))
    check_every_row_once(given)
    for rollouts, line in zip(rollouts_of(tmp_path / "run"), lines(tmp_path / "run"), strict=True):
        late = [r for r in rollouts if r.payload["do"] == "hang"]
        assert {r.status for r in late} <= {Status.TIMEOUT}
        assert (line["rollouts/failed"], line["rollouts/trained"]) == (len(late), 4 - len(late))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
def test_a_run_that_is_killed_at_any_moment_trains_on_every_row_as_often(
    parts: Path, tmp_path: Path, seed: int
) -> None:
    given, dice = settings(parts, tmp_path / "run", steps=8, resume=True, agent=own_agent(parts)), random.Random(seed)
    (tmp_path / "run").mkdir()
    for kills in range(2):
        process = start_training(command_line(given), tmp_path / "log")
        after = dice.randint(1, 5) if not kills else 7
        eventually(lambda: not process.is_alive() or steps_done(tmp_path / "run") >= after, 300)  # noqa: B023
        time.sleep(dice.random())
        process.kill()
        process.join()
    process = start_training(command_line(given), tmp_path / "log")
    process.join(300)
    assert process.exitcode == 0, (tmp_path / "log").read_text()[-3000:]
    check_every_row_once(given)


@pytest.mark.timeout(900)
def test_a_run_that_is_killed_while_weights_are_swapped_trains_on_every_row_as_often(
    parts: Path, tmp_path: Path
) -> None:
    """The engine's copy then has some of the new weights and some of the old ones; sessions are running."""
    given = settings(parts, tmp_path / "run", resume=True, agent=own_agent(parts))
    (tmp_path / "run").mkdir()
    copied = 35  # tensors, of which the model has 14: within the third swap
    process = start_training(command_line(given), tmp_path / "log", KILL_AT_COPY.format(copied=copied))
    process.join(300)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "log").read_text()[-3000:]
    assert 0 < steps_done(tmp_path / "run") < given.steps
    process = start_training(command_line(given), tmp_path / "log")
    process.join(300)
    assert process.exitcode == 0, (tmp_path / "log").read_text()[-3000:]
    check_every_row_once(given)
    train(given)  # a kill may come after the last checkpoint
    check_every_row_once(given)


def steps_done(output: Path) -> int:
    path = output / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


KILL_AT_COPY = """
import os, torch
copied, copy = 0, torch.Tensor.copy_
def counting_copy(self, *args, **named):
    global copied
    copied += sys._getframe(1).f_code.co_filename.endswith("sampling_copy.py")
    if copied == {copied}:
        os.kill(os.getpid(), 9)
    return copy(self, *args, **named)
torch.Tensor.copy_ = counting_copy
"""
