"""`agentcore-rl train` on a very small random model: what a run leaves behind, and going on after it was cut off."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from agentcore_rl_toolkit.backends.loop.report import Report
from agentcore_rl_toolkit.backends.trl import train
from agentcore_rl_toolkit.backends.trl.backend import TrlSettings
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.errors import ConfigError, RolloutsStopped
from agentcore_rl_toolkit.rollout import read_rollouts
from support.agent import ASKING
from support.process import free_port
from support.runtime import eventually, shared_runtime
from support.tokenizers import PLAIN_TEMPLATE, make_tokenizer
from support.training_process import command_line, start_training

pytestmark = pytest.mark.filterwarnings("ignore")  # Transformers' and TRL's, a different one each release

AGENT = (
    ASKING
    + """
import random
from concurrent.futures import ThreadPoolExecutor

@app.rollout_entrypoint
def invoke_agent(payload):
    said = ask(payload)
    if payload["do"] == "raise":
        raise ValueError("broken on purpose")
    if payload["do"] == "sleep":
        time.sleep(300)
    if payload["do"] == "nap":
        time.sleep(3)
    if payload["do"] == "forget":
        return {"response": said}
    if payload["do"] == "count":
        with ThreadPoolExecutor(2) as pool:  # the second prompt is asked twice, at the same time as the first
            said += "".join(pool.map(lambda text: ask(payload | {"prompt": text}), ("other", "again", "again")))
        return {"rewards": len(said) % 7, "response": said}
    return {"rewards": 1.0 if payload["do"] == "same" else random.random(), "response": said}
"""
)


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
    for do in ("vary", "same", "raise", "sleep", "nap", "forget", "count"):
        rows = [json.dumps({"prompt": f"row {n}", "do": do}) for n in range(4)]
        (folder / f"{do}.jsonl").write_text("\n".join([rows[0], "{broken", *rows[1:]]) + "\n")
    with shared_runtime(folder / "agent" / "rl_app.py", tmp_path_factory.getbasetemp()) as arn:
        (folder / "arn").write_text(arn)
        yield folder


def settings(parts: Path, output: Path, do: str = "vary", **more: Any) -> TrlSettings:
    known: dict[str, Any] = {
        "agent": (parts / "arn").read_text(),
        "data": str(parts / f"{do}.jsonl"),
        "model": str(parts / "model"),
        "output": str(output),
        "steps": 2,
        "rows_per_step": 2,
        "n": 2,
        "batch_size": 2,
        "max_tokens": 6,
        "learning_rate": 1e-3,
        "device": "cpu",
        "concurrency": 4,
        "save_every": 1,
    }
    return TrlSettings(**known | more)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps(output: Path) -> list[int]:
    return [line["step"] for line in lines(output / "metrics.jsonl")]


@pytest.fixture(scope="module")
def cut_off(parts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run that was killed in the middle of a step, its third or later."""
    output = tmp_path_factory.mktemp("cut_off") / "run"
    process = start_training(command_line(settings(parts, output, steps=400)), output.parent / "log")
    try:
        eventually(lambda: not process.is_alive() or (output / "checkpoints/checkpoint-2").exists(), 200)
        assert process.is_alive(), (output.parent / "log").read_text()[-3000:]
        eventually(lambda: (output / "rollouts/step-000002.jsonl").exists(), 60)  # in the middle of the step after it
    finally:
        process.kill()
        process.join()
    return output


def test_going_on_after_a_kill_counts_every_step_once(
    parts: Path, cut_off: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = max(int(path.name.rpartition("-")[2]) for path in (cut_off / "checkpoints").glob("checkpoint-*"))
    total = last + 2
    given = settings(parts, cut_off, steps=total, resume=True, seed=3)
    assert main(command_line(given)) == 0
    printed = capsys.readouterr()
    assert "warning: seed is 3 but was 0: " in printed.err
    assert "vary.jsonl: line 2: " in printed.err
    assert steps(cut_off) == list(range(1, total + 1))
    files = sorted((cut_off / "rollouts").iterdir())
    assert [file.name for file in files] == [f"step-{step:06d}.jsonl" for step in range(total)]
    sessions = []
    for step, file in enumerate(files):
        rollouts = list(read_rollouts(file))
        assert len(rollouts) == 4
        assert {version for r in rollouts for row in r.rows for version, _, _ in row.versions} == {str(step)}
        assert all(r.payload["prompt"].startswith("row ") and r.fidelity.trained for r in rollouts)
        sessions += [r.session_id for r in rollouts]
    assert len(set(sessions)) == 4 * total
    weights = (cut_off / f"checkpoints/checkpoint-{total}/model.safetensors").read_bytes()
    assert main(command_line(given)) == 0  # a kill may come after the last checkpoint
    assert steps(cut_off) == list(range(1, total + 1))
    assert sorted((cut_off / "rollouts").iterdir()) == files
    assert (cut_off / f"checkpoints/checkpoint-{total}/model.safetensors").read_bytes() == weights
    assert json.loads((cut_off / "summary.json").read_text())["steps"] == total
    summary = json.loads((cut_off / "summary.json").read_text())
    assert (summary["steps"], summary["interrupted"], summary["rollouts"]) == (total, False, 4 * total)
    assert (summary["fidelity"], summary["failures"], len(summary["reward"])) == (1.0, {}, total)
    assert summary["checkpoint"].endswith(f"checkpoint-{total}")
    assert (Path(summary["checkpoint"]) / "model.safetensors").exists()
    assert json.loads(printed.out)["steps"] == total
    line = lines(cut_off / "metrics.jsonl")[-1]
    assert {
        "loss",
        "reward",
        "groups/kept",
        "rollouts/run",
        "fidelity",
        "seconds/session",
        "length/turns",
    } <= line.keys()
    assert (line["rollouts/run"], line["rollouts/trained"], line["fidelity"]) == (4, 4, 1.0)


def test_the_rollouts_of_a_run_can_be_scored_again(
    cut_off: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reward.py").write_text("def score(response_text, do):\n    return 9.5 if do == 'vary' else 0\n")
    given = ["rescore", str(cut_off / "rollouts"), "--reward", f"{tmp_path}/reward.py:score"]
    output = tmp_path / "again.parquet"
    assert main([*given, "--output", str(output)]) == 0
    count = sum(1 for file in (cut_off / "rollouts").iterdir() for _ in read_rollouts(file))
    table = capsys.readouterr().out.splitlines()
    assert table[-1].split() == ["after", str(count), "9.5"]
    assert table[-2].split()[:2] == ["before", str(count)]
    again = list(read_rollouts(output))
    assert [(r.reward, r.trained, bool(r.rows)) for r in again] == [(9.5, True, True)] * count
    assert main([*given, "--output", str(output)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main([*given, "--status", "timeout"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["after", "0", "-"]
    assert main(["rescore", str(tmp_path / "nothing"), *given[2:]]) == 1
    assert "has no rollouts" in capsys.readouterr().err


def test_a_run_is_not_written_over(parts: Path, cut_off: Path) -> None:
    with pytest.raises(ConfigError, match="has a run already") as caught:
        train(settings(parts, cut_off))
    assert "--resume" in str(caught.value)


@pytest.fixture
def interrupt() -> Iterator[Any]:
    threads = []

    def when(condition: Any, number: int = signal.SIGINT) -> None:
        def wait() -> None:
            eventually(condition, 60)
            signal.pthread_kill(threading.main_thread().ident or 0, number)

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield when
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_end_with_a_checkpoint(
    parts: Path, tmp_path: Path, interrupt: Any, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    output = tmp_path / "run"
    given = settings(parts, output, steps=400, save_every=400)
    interrupt(lambda: len(steps(output)) >= 2, number)
    assert main(command_line(given)) == code
    summary = json.loads((output / "summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["steps"] >= 2
    assert summary["checkpoint"] == str(output / "checkpoints" / f"checkpoint-{summary['steps']}")
    assert "interrupted; saving a checkpoint" in capsys.readouterr().err


def test_a_run_whose_last_evaluation_is_interrupted_is_whole_and_has_no_after(
    parts: Path, tmp_path: Path, interrupt: Any
) -> None:
    output, held_out = tmp_path / "run", tmp_path / "held_out.jsonl"
    held_out.write_text((parts / "nap.jsonl").read_text().splitlines()[0])
    given = settings(parts, output, eval_data=str(held_out))
    interrupt(lambda: list((output / "evaluations").glob("*step-000002*")))  # it has begun, and its row naps
    assert main(command_line(given)) == 130
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["interrupted"], summary["steps"], summary.get("after")) == (True, 2, None)
    assert summary["before"] is not None
    assert summary["checkpoint"] == str(output / "checkpoints/checkpoint-2")


def test_a_run_that_is_interrupted_before_its_first_step_says_so(
    parts: Path, tmp_path: Path, interrupt: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    output, held_out = tmp_path / "run", tmp_path / "held_out.jsonl"
    held_out.write_text((parts / "nap.jsonl").read_text().splitlines()[0])
    interrupt(lambda: list((output / "evaluations").glob("*step-000000*")))  # it has begun, and its row naps
    assert main(command_line(settings(parts, output, eval_data=str(held_out)))) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted before training began; no checkpoint is written"
    assert not (output / "summary.json").exists()
    assert not list((output / "checkpoints").glob("*"))


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_run_that_is_interrupted_between_steps_has_the_figures_of_every_step(
    parts: Path, tmp_path: Path, interrupt: Any, ahead: int
) -> None:
    output, held_out = tmp_path / "run", tmp_path / "held_out.jsonl"
    held_out.write_text((parts / "nap.jsonl").read_text().splitlines()[0])
    given = settings(parts, output, steps=4, eval_data=str(held_out), eval_every=1, async_steps=ahead)
    interrupt(lambda: list((output / "evaluations").glob("*step-000001*")))  # it has begun, and its row naps
    assert main(command_line(given)) == 130
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["interrupted"], summary["steps"], len(summary["reward"])) == (True, 1, 1)
    assert steps(output) == [1]
    assert summary["checkpoint"] == str(output / "checkpoints/checkpoint-1")
    more: dict[str, Any] = {"eval_data": str(held_out), "eval_every": 1, "async_steps": ahead, "resume": True}
    assert main(command_line(settings(parts, output, steps=2, **more))) == 0
    (rollout,) = read_rollouts(output / "evaluations" / "step-000001.jsonl")  # the evaluation that was missing
    assert {version for row in rollout.rows for version, _, _ in row.versions} == {"1"}


def test_an_agent_that_always_crashes_stops_the_run_with_one_traceback(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(RolloutsStopped, match="3 rollouts in a row could not be trained on") as caught:
        train(settings(parts, tmp_path / "run", "raise", max_failures=3))
    assert str(caught.value).count("Traceback (most recent call last)") == 1
    assert "ValueError: broken on purpose" in str(caught.value)


def test_a_run_that_trained_on_nothing_has_failed_and_says_what_of(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "run"
    assert main(command_line(settings(parts, output, "forget"))) == 1
    said = capsys.readouterr().err
    assert "nothing could be trained on in 2 steps. What became of the rollouts:\n       8 × no reward" in said
    assert f"All of them are in {output / 'rollouts'}." in said
    assert "All reward functions" not in caplog.text, "TRL's warning of each rollout without a reward"
    assert not (output / "reward.png").exists()
    assert "hint: return {'rewards': …} from the entrypoint" in said
    summary = json.loads((output / "summary.json").read_text())
    assert (summary["trained"], summary["not_trained_on"]) == (0, [{"cause": "no reward", "rollouts": 8}])


def test_steps_with_nothing_to_train_on_end_a_run(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(RolloutsStopped, match="nothing could be trained on in 3 steps in a row"):
        train(settings(parts, tmp_path / "run", "forget", steps=9, max_failures=99))


def test_held_out_rows_that_are_trained_on_are_warned_of(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text((parts / "same.jsonl").read_text().splitlines()[0] + '\n{"prompt": "new", "do": "same"}\n')
    train(settings(parts, tmp_path / "run", "same", steps=1, eval_data=str(held_out)))
    assert "guard held_out_rows_trained: 1 of 2 held-out rows are training rows too" in capsys.readouterr().err


def test_a_run_whose_rewards_are_all_equal_has_no_nan_and_says_that_nothing_could_be_learned(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command_line(settings(parts, tmp_path / "run", "same", steps=1))) == 0
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert (summary["reward"], summary["nothing_learned"], summary["trained"]) == ([1.0], True, 4)
    assert "nothing could be learned: in every group of every step, all rollouts had the same reward" in said.err
    assert "nan" not in (tmp_path / "run" / "metrics.jsonl").read_text().lower()


def test_failures_that_the_table_trains_on(parts: Path, tmp_path: Path) -> None:
    given = settings(parts, tmp_path / "run", "raise", steps=1, failures={"agent_error": "train"}, failed_reward=-3.0)
    assert train(given)["reward"] == [-3.0]
    assert os.path.exists(tmp_path / "run" / "summary.json")


def test_too_few_rows_are_refused(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 4 rows, and a step takes 5"):
        train(settings(parts, tmp_path / "run", rows_per_step=5))


def test_an_adapter_is_trained_and_sampled_from(parts: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    given = settings(parts, tmp_path / "run", lora_rank=4, learning_rate=0.05, max_staleness=0, steps=2)
    summary = train(given, report=Report(given, quiet=True))
    checkpoint = Path(summary["checkpoint"])
    assert (checkpoint / "adapter_model.safetensors").exists()
    assert not (checkpoint / "model.safetensors").exists()
    assert (summary["steps"], summary["fidelity"], summary["failures"]) == (2, 1.0, {})
    assert lines(tmp_path / "run" / "metrics.jsonl")[-1]["grad_norm"] > 0

    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def logprobs(model: Any, ids: list[int]) -> Any:
        with torch.no_grad():
            return (
                model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]
            )

    base = AutoModelForCausalLM.from_pretrained(parts / "model")
    (row,) = next(iter(read_rollouts(tmp_path / "run" / "rollouts" / "step-000001.jsonl"))).rows
    sampled = torch.tensor(row.logprobs[1:]), torch.tensor(row.loss_mask[1:]).bool()
    without = logprobs(base, row.token_ids.tolist())
    adapted = logprobs(PeftModel.from_pretrained(base, checkpoint.with_name("checkpoint-1")), row.token_ids.tolist())
    # The second step was sampled with the adapter that the first one left.
    assert (adapted - sampled[0])[sampled[1]].abs().max() < 1e-4
    assert (without - sampled[0])[sampled[1]].abs().max() > 1e-3

    from agentcore_rl_toolkit.engine.transformers.model_runner import load

    merged = logprobs(load(checkpoint.with_name("checkpoint-1"), "cpu", None), row.token_ids.tolist())
    assert (merged - adapted).abs().max() < 1e-4


def test_a_runs_newest_checkpoint_is_evaluated_against_another_model(
    parts: Path, cut_off: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--model", str(parts / "model"), "--model", str(cut_off)]
    more = ["--data", str(parts / "vary.jsonl"), "--store", str(tmp_path / "store"), "--quiet"]
    report = tmp_path / "report.json"
    command = ["eval", str(parts / "agent" / "rl_app.py"), *models, *more, "--exp-id", "try", "--output", str(report)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert f"loading {cut_off / 'checkpoints' / 'checkpoint-'}" in printed.err
    assert f"a is {parts / 'model'}, b is {cut_off}: no difference can be told apart" in printed.out
    known = json.loads(report.read_text())
    assert [(one["exp_id"], one["summary"]["completed"]) for one in known["models"]] == [("try-0", 4), ("try-1", 4)]
    assert known["models"][1]["comparison"]["both"] == 4
    assert {outcome["model"] for outcome in known["outcomes"]} == {str(parts / "model"), str(cut_off)}
    assert main(["show", str(report)]) == 0
    shown = capsys.readouterr().out
    assert f"{parts / 'model'}: 4 results (4 completed)" in shown
    assert f"{cut_off}: 4 results (4 completed)" in shown
    assert main(["eval", "agent.py", *models, "--base-url", "http://127.0.0.1:1/v1"]) == 1
    assert "--base-url can't be combined with --model" in capsys.readouterr().err


def test_a_runs_newest_checkpoint_makes_rollouts(
    parts: Path, cut_off: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    more = ["--data", str(parts / "vary.jsonl"), "--limit", "2", "--n", "2", "--exp-id", "try", "--quiet"]
    assert main(["rollout", str(parts / "agent" / "rl_app.py"), "--model", str(cut_off), *more]) == 1  # for a bad line
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted((line["index"], line["sample"], line["status"]) for line in lines) == [
        (row, sample, "completed") for row in (0, 1) for sample in (0, 1)
    ]
    for line in lines:  # in the default store, beside a training run's folder
        stored = json.loads((tmp_path / "runs" / "results" / line["result_key"]).read_bytes())
        assert stored["rewards"] == line["rewards"]
    assert main(["results", "--exp-id", "try", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["rollout", "agent.py", "--model", "tiny", "--resume"]) == 1
    assert "--resume can't be combined with --model" in capsys.readouterr().err


def test_rows_are_mixed_from_files_and_those_that_teach_nothing_are_left_out(parts: Path, tmp_path: Path) -> None:
    def run(output: str, steps: int, **more: Any) -> tuple[Any, list[Any], list[list[str]]]:
        given = settings(parts, tmp_path / output, "same", steps=steps, mix={str(parts / "vary.jsonl"): 1}, **more)
        summary = train(given, report=Report(given, quiet=True))
        files = [tmp_path / output / "rollouts" / f"step-{step:06d}.jsonl" for step in range(steps)]
        asked = [sorted({r.payload["do"] + r.payload["prompt"] for r in read_rollouts(file)}) for file in files]
        return summary, lines(tmp_path / output / "metrics.jsonl"), asked

    more: dict[str, Any] = {"skip_epochs": 1, "rows_per_step": 4, "save_every": 3}
    summary, metrics, asked = run("whole", 6, **more)
    assert [sum(row.startswith("same") for row in step) for step in asked] == [2] * 6
    same = [row for step in asked for row in step if row.startswith("same")]
    assert sorted(same[:4]) == sorted({*same})  # the first epoch has all of them; no other row taught anything
    assert [line["rows/skipped"] for line in metrics][:2] == [0, 2]
    assert {name: metrics[0][f"source/{name}"] for name in ("same/reward", "same/teaching", "vary/teaching")} == {
        "same/reward": 1.0,
        "same/teaching": 0.0,
        "vary/teaching": 1.0,
    }
    assert (metrics[0]["source/same/groups"], metrics[0]["source/vary/rollouts"]) == (2, 4)
    assert summary["sources"]["same"] == {"rows": 4, "rollouts": 24, "reward": [1.0] * 6}
    outcomes = lines(tmp_path / "whole" / "row_outcomes.jsonl")
    assert [(line["step"], len(line["taught"]), len(line["same"])) for line in outcomes] == [
        (n, 2, 2) for n in range(6)
    ]

    run("parted", 3, **more)
    with (tmp_path / "parted" / "row_outcomes.jsonl").open("a") as file:
        file.write('{"step": 3, "taught": [], "same": [0, 1, 2, 3, 4, 5, 6, 7]}\n{"st')  # of a step that runs again
    assert run("parted", 6, **more, resume=True)[2] == asked


def test_a_teacher_trains_rollouts_whose_rewards_are_all_the_same(parts: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(1)
    teacher = AutoModelForCausalLM.from_pretrained(parts / "model")
    teacher.lm_head.weight.data.normal_(std=0.3)
    teacher.save_pretrained(tmp_path / "teacher")
    AutoTokenizer.from_pretrained(parts / "model").save_pretrained(tmp_path / "teacher")
    more: dict[str, Any] = {"teacher": str(tmp_path / "teacher"), "teacher_weight": 0.5, "reward_weight": 0.0}
    given = settings(parts, tmp_path / "run", "same", steps=1, **more)
    assert "exit_code" not in train(given, report=Report(given, quiet=True))
    gaps = []
    for rollout in read_rollouts(tmp_path / "run" / "rollouts" / "step-000000.jsonl"):
        for row in rollout.rows:
            ids = torch.tensor([row.token_ids.tolist()])
            with torch.no_grad():
                known = teacher(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].numpy()
            gaps += [row.logprobs[at] - known[at - 1] for at in row.loss_mask.nonzero()[0]]
    (line,) = lines(tmp_path / "run" / "metrics.jsonl")
    assert line["teacher/kl"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-4)
    assert line["grad_norm"] > 0  # rewards alone would change nothing


def sampled_by(output: Path) -> list[tuple[Any, ...]]:
    """The tokens and weight versions of everything that a run sampled, and in training the rewards: held-out rows have
    random ones."""
    files = [*sorted((output / "rollouts").glob("*.jsonl")), *sorted((output / "evaluations").glob("*.jsonl"))]
    assert len(files) == 4  # two steps, before and after
    rewards = {file: [one.rewards for one in read_rollouts(file)] for file in files if file.parent.name == "rollouts"}
    found = [(row, file, at) for file in files for at, one in enumerate(read_rollouts(file)) for row in one.rows]
    return sorted(
        (row.token_ids.tolist(), row.versions, file in rewards and rewards[file][at]) for row, file, at in found
    )


def test_stored_rollouts_warm_a_model_up_that_is_then_trained(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, warm, agent = tmp_path / "stored", tmp_path / "warm", str(parts / "agent")
    data = ["--data", str(parts / "count.jsonl"), "--store", str(tmp_path / "results"), "--n", "2", "--quiet"]
    asked = ["rollout", agent, *data, "--context-limit", "100", "--rollouts", str(stored)]
    assert main([*asked, "--model", str(parts / "model")]) == 1  # the data has a bad line
    assert "--rollouts needs --model" in (main(asked), capsys.readouterr().err)[1]
    rollouts = list(read_rollouts(stored / "rollouts" / "step-000000.jsonl"))
    assert len(rollouts) == 8
    assert {len(rollout.rows) > 1 for rollout in rollouts} == {True}
    assert main([*asked, "--model", str(parts / "model")]) == 1
    assert "the folder is not empty" in capsys.readouterr().err
    assert main(["show", str(stored)]) == 0
    assert "8 rollouts, completed" in capsys.readouterr().out

    tune = ["sft", str(stored), "--model", str(parts / "model"), "--output", str(warm), "--device", "cpu"]
    tune += ["--min-reward", "0", "--epochs", "2", "--rows-per-step", "4", "--learning-rate", "0.05"]
    assert main([*tune, "--dry-run"]) == 0
    chosen = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert not warm.exists()
    assert main(tune) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["rollouts"], summary["demonstrations"]) == (8, len(chosen))
    by_row: dict[str, float] = {}
    for rollout in rollouts:
        row = rollout.input_id.partition("-")[2]
        by_row[row] = max(by_row.get(row, 0.0), rollout.reward or 0.0)
    assert {one["row"]: one["reward"] for one in chosen} == by_row
    assert summary["trained_tokens"] == sum(one["trained"] for one in chosen)
    assert summary["loss_after"] < summary["loss_before"]
    assert main(["show", str(warm)]) == 0
    assert "token accuracy" in capsys.readouterr().out

    given = dataclasses.replace(settings(parts, tmp_path / "run", steps=1), model=str(warm))
    assert train(given, report=Report(given, quiet=True))["trained"] == 4


@pytest.mark.timeout(300)
def test_runs_with_one_seed_sample_the_same_tokens_wherever_the_gateway_is(parts: Path, tmp_path: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "one": {},
        "beside": {"gateway": {"workers": 2}, "concurrency": 1},  # and slower
        "other": {"seed": 1},
    }
    sampled = {}
    for name, more in changes.items():
        more |= {"eval_data": str(parts / "vary.jsonl"), "max_tokens": 12}
        train(settings(parts, tmp_path / name, "count", **more), report=None)
        sampled[name] = sampled_by(tmp_path / name)
    assert sampled["one"] == sampled["beside"] != sampled["other"]
    assert {version for _, versions, _ in sampled["beside"] for version, _, _ in versions} == {"0", "1", "2"}
    assert len({tuple(row) for row, _, _ in sampled["one"]}) == len(sampled["one"])  # asked again is sampled again


def test_two_processes_share_a_run(parts: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    config = tmp_path / "run.toml"
    given = settings(parts, output, steps=1, eval_data=str(parts / "vary.jsonl"))
    changed = {spec.name: getattr(given, spec.name) for spec in dataclasses.fields(given)}
    known = {name: value for name, value in changed.items() if isinstance(value, (str, int, float))}
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in known.items()))
    torchrun = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}  # what it sets
    command, logs = ["train", "--config", str(config)], [tmp_path / f"log-{rank}" for rank in range(2)]
    ranks = [
        start_training(command, log, **torchrun, RANK=str(rank), LOCAL_RANK=str(rank)) for rank, log in enumerate(logs)
    ]
    for process, log in zip(ranks, logs, strict=True):
        process.join(280)
        assert process.exitcode == 0, log.read_text()[-3000:]
    (told,) = filter(None, [Path(f"{log}.out").read_text() for log in logs])  # one of them tells
    summary = json.loads(told)
    assert (summary["steps"], summary["rollouts"], summary["fidelity"]) == (1, 4, 1.0)
    groups = []
    for name in ("step-000000.jsonl", "step-000000.process-1.jsonl"):
        rollouts = list(read_rollouts(output / "rollouts" / name))
        groups.append({rollout.input_id for rollout in rollouts})
        assert (len(rollouts), len(groups[-1])) == (2, 1)  # whole groups, one in each
    assert groups[0] != groups[1]
    held_out = [len(list(read_rollouts(path))) for path in sorted((output / "evaluations").glob("step-000001*"))]
    assert held_out == [2, 2]
    assert summary["after"] is not None
