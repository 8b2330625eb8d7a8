"""Training a real small language model on the math agent: what it learns, where the time goes, and what our path costs.

    python benchmarks/training.py --model FOLDER --device cuda
    python benchmarks/training.py --model FOLDER --vllm colocate --only long

A small model never calls the tool by itself, so it is first shown some conversations of a mediocre agent (the same
that made the built-in policy). Then three runs from the same weights on the same problems: ours and TRL's own
in-process tool loop for a few steps each, whose step times are compared, and ours for longer with held-out accuracy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "examples" / "strands_math_agent"
sys.path[:0] = [str(AGENT), str(ROOT / "scripts" / "tiny_model")]
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch  # noqa: E402
import transformers  # noqa: E402
from calculator import evaluate  # noqa: E402
from corpus import MEDIOCRE, conversations  # noqa: E402
from datasets import Dataset  # noqa: E402
from problems import problems  # noqa: E402
from reward import MathReward  # noqa: E402
from train import batches  # noqa: E402
from trl import GRPOTrainer  # noqa: E402

from agentcore_rl_toolkit.backends.trl import TrlSettings, train  # noqa: E402
from agentcore_rl_toolkit.backends.trl.grpo_config import load_policy, trl_config  # noqa: E402

SYSTEM = "Solve the math problem step by step."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default=None)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--chat-template", help="a Jinja file; default: TRL's for Qwen2.5, which has tools")
    parser.add_argument("--shown", type=int, default=60, help="batches of 32 conversations shown first; 0 for none")
    parser.add_argument("--steps", type=int, default=60, help="of the long run")
    parser.add_argument("--compared", type=int, default=8, help="steps of the compared runs")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("-n", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--only", choices=["ours", "trl", "long"])
    parser.add_argument("--vllm", choices=["colocate"], help="what samples (default: the engine in this process)")
    parser.add_argument("--keep-shown", help="also keep the model that was shown conversations, in this folder")
    parser.add_argument("--output", default=str(ROOT / "benchmarks" / "results" / "training.json"))
    args = parser.parse_args()
    template = args.chat_template or _trl_template("qwen2_5.jinja")
    folder = Path(tempfile.mkdtemp(prefix="training-"))
    report: dict[str, Any] = {"settings": vars(args), "machine": _machine()}
    try:
        if args.shown:
            shown = Path(args.keep_shown or folder / "shown")
            args.model = _show(args.model, template, args.shown, shown, args.device)
        for name in ("ours", "trl", "long"):
            if args.only in (None, name):
                settings = _settings(args, folder / name, template, args.steps if name == "long" else args.compared)
                report[name] = _trl_loop(settings) if name == "trl" else _ours(settings, evaluated=name == "long")
                print(json.dumps({name: report[name]}), flush=True)
        if {"ours", "trl"} <= report.keys():
            report["step_time_ratio"] = report["ours"]["step_seconds"] / report["trl"]["step_seconds"]
    finally:
        Path(args.output).write_text(json.dumps(report, indent=1) + "\n")
        shutil.rmtree(folder, ignore_errors=True)


def _show(model_name: str, template: str, steps: int, folder: Path, device: str | None) -> str:
    """Train on conversations of a mediocre agent; gives the folder of the model that comes of it."""
    settings = TrlSettings(model=model_name, chat_template=template, device=device)
    model, tokenizer = load_policy(settings)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for ids, labels in islice(batches(conversations(MEDIOCRE, 1), tokenizer, 32), steps):
        loss = model(input_ids=ids.to(model.device), labels=labels.to(model.device)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"shown {steps} batches, loss {loss.item():.3f}", flush=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _settings(args: argparse.Namespace, folder: Path, template: str, steps: int) -> TrlSettings:
    folder.mkdir(parents=True)
    data = {}
    for split, count in (("train", 2048), ("held-out", args.held_out)):
        data[split] = folder / f"{split}.jsonl"
        rows = [json.dumps(problem.row) + "\n" for problem in islice(problems(split, 0), count)]
        data[split].write_text("".join(rows))
    return TrlSettings(
        agent=str(AGENT / "rl_app.py"),
        model=args.model,
        chat_template=template,
        data=str(data["train"]),
        eval_data=str(data["held-out"]),
        output=str(folder / "run"),
        steps=steps,
        rows_per_step=args.rows,
        n=args.n,
        learning_rate=args.learning_rate,
        batch_size=args.batch_size,
        max_tokens=args.max_tokens,
        concurrency=args.concurrency,
        dtype=args.dtype,
        device=args.device,
        vllm=args.vllm,
        options={"vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": 2048} if args.vllm else {},
        failures={"truncated": "train", "agent_error": "train"},
        eval_every=max(1, steps // 4),
        save_every=10_000,
        timeout=120,
    )


def _ours(settings: TrlSettings, *, evaluated: bool) -> dict[str, Any]:
    if not evaluated:
        settings = dataclasses.replace(settings, eval_data=None, eval_every=0)
    summary = train(settings)
    lines = [json.loads(line) for line in (settings.folder / "metrics.jsonl").read_text().splitlines()]
    later = lines[1:] or lines
    stations = {name for line in later for name in line if name.startswith("seconds/")}
    found = {
        "step_seconds": statistics.median(line["step_time"] for line in later),
        "step_seconds_all": [round(line["step_time"], 3) for line in lines],
        "stations": {name: statistics.fmean(line.get(name, 0.0) for line in later) for name in sorted(stations)},
        "sampled_tokens_per_rollout": statistics.fmean(line["length/sampled_tokens"] for line in later),
        "tokens_per_second": statistics.median(line["tokens_per_second"] for line in later),
        "fidelity": summary["fidelity"],
        "failures": summary["failures"],
        "rollouts": summary["rollouts"],
        "reward": [round(line.get("reward", 0.0), 4) for line in lines],
    }
    names = ("before", "before_interval", "after", "after_interval", "seconds")
    return found | ({name: summary[name] for name in names} if evaluated else {})


def _trl_loop(settings: TrlSettings) -> dict[str, Any]:
    """TRL alone: the tool is called in its own process, between two batched generations."""
    transformers.set_seed(settings.seed)
    model, tokenizer = load_policy(settings)
    rows = [json.loads(line) for line in Path(settings.data).read_text().splitlines()]
    data = [
        {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["prompt"]}],
            "answer": row["answer"],
        }
        for row in rows
    ]
    reward = MathReward()

    def right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        texts = [str(completion[-1].get("content") or "") for completion in completions]
        return [reward(response_text=text, ground_truth=want) for text, want in zip(texts, answer, strict=True)]

    def calculator(expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: Numbers, + - * / and parentheses.
        """
        return str(evaluate(expression))

    config = trl_config(settings)
    config.max_completion_length = 2 * (settings.max_tokens or 128)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[right],
        args=config,
        train_dataset=Dataset.from_list(data),
        processing_class=tokenizer,
        tools=[calculator],
    )
    began = time.monotonic()
    trainer.train()
    logs = [line for line in trainer.state.log_history if "step_time" in line]
    later = logs[1:] or logs
    return {
        "step_seconds": statistics.median(line["step_time"] for line in later),
        "step_seconds_all": [round(line["step_time"], 3) for line in logs],
        "sampled_tokens_per_rollout": statistics.fmean(line["completions/mean_length"] for line in later),
        "reward": [round(line["reward"], 4) for line in logs],
        "seconds": time.monotonic() - began,
    }


def _trl_template(name: str) -> str:
    import trl

    return str(Path(trl.__file__).parent / "chat_templates" / name)


def _machine() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"gpu": gpu, "cores": os.cpu_count(), "torch": torch.__version__, "transformers": transformers.__version__}


if __name__ == "__main__":
    main()
