"""The cases of `gpu.py` with verl: each is a run of the math agent with the built-in policy, through stock verl.

The agent is asked a second time in its own conversation, so that every rollout folds into two rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu import Bench

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "strands_math_agent"
ROWS, N = 8, 8
_ANSWER = "    response = agent(question.prompt)\n"
_SECOND = """
    if "_rollout" in payload:
        Agent(model=model, tools=[calculator], system_prompt="Answer.", callback_handler=None)(question.prompt)
"""
ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
OPTIONS = ("trainer.logger=[console,file]", f"{ROLLOUT}.gpu_memory_utilization=0.25")
_RUN_SECONDS = 420


def _agent(bench: Bench) -> Path:
    """The math agent with a second conversation, and its rows."""
    folder = bench.folder / "two_rows"
    if not folder.exists():
        shutil.copytree(EXAMPLE, folder)
        text = (folder / "rl_app.py").read_text()
        assert text.count(_ANSWER) == 1
        (folder / "rl_app.py").write_text(text.replace(_ANSWER, _ANSWER + _SECOND))
        for split, count in (("train", 256), ("held-out", 64)):
            rows = subprocess.run(
                [sys.executable, "problems.py", split, str(count)], cwd=folder, capture_output=True, check=True
            )
            (folder / f"{split}.jsonl").write_bytes(rows.stdout)
    return folder


def _command(
    bench: Bench, name: str, *more: str, options: tuple[str, ...] = (), steps: int, model: str = "tiny"
) -> list[str]:
    agent = _agent(bench)
    flags = {
        "--data": agent / "train.jsonl", "--model": model, "--output": bench.folder / name, "--steps": steps,
        "--rows-per-step": ROWS, "--n": N, "--context-limit": 1024, "--concurrency": 64, "--tps-limit": 1000,
    }  # fmt: skip
    words = [str(word) for flag in flags.items() for word in flag]
    settings = [word for option in (*OPTIONS, *options) for word in ("--options", option)]
    start = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "train", str(agent / "rl_app.py"), "--backend", "verl"]
    return [*start, *words, *more, *settings]


def _run(bench: Bench, name: str, command: list[str]) -> dict[str, Any]:
    """Run it to its end; the run's summary, and verl's own times of a step."""
    log = bench.folder / f"{name}.verl.jsonl"
    log.unlink(missing_ok=True)
    bench.run(name, command, seconds=_RUN_SECONDS, trl=False, VERL_FILE_LOGGER_PATH=str(log))
    output = Path(command[command.index("--output") + 1])
    summary = json.loads((output / "summary.json").read_text())
    lines = [json.loads(line)["data"] for line in log.read_text().splitlines()]
    trained = [line for line in lines if "timing_s/step" in line]
    names = ("steps", "before", "after", "rollouts", "trained", "failures", "fidelity", "seconds", "checkpoint")
    found = {key: summary.get(key) for key in names}
    found["checkpoint"] = found["checkpoint"] and str(Path(found["checkpoint"]).relative_to(output))
    mismatch = [line.get("training/rollout_probs_diff_mean") for line in trained]
    figures = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return found | {
        "step_s": _median(trained, "timing_s/step"),
        "generate_s": _median(trained, "timing_s/gen"),
        "rows_per_rollout": round(statistics.fmean(line["fidelity/rows"] for line in figures), 2),
        "probability_difference": max((value for value in mismatch if value is not None), default=None),
    }


def _median(steps: list[dict[str, Any]], name: str) -> float | None:
    """The median over all steps but the first, which compiles."""
    values = [step[name] for step in steps[1:] or steps if name in step]
    return round(statistics.median(values), 2) if values else None


def sync(bench: Bench) -> dict[str, Any]:
    """Synchronous, two workers, held-out rows before and after, checkpoints."""
    held = ("--eval-data", str(_agent(bench) / "held-out.jsonl"))
    lr = (f"{ACTOR}.optim.lr=2.5e-4",)
    command = _command(bench, "verl-sync", *held, "--save-every", "6", "--workers", "2", options=lr, steps=12)
    found = _run(bench, "verl-sync", command)
    groups = bench.folder / "verl-sync" / "groups"
    workers = {path.stem: len(path.read_text().splitlines()) for path in sorted(groups.glob("worker-*.jsonl"))}
    return found | {"groups_of_workers": workers}


def resume(bench: Bench) -> dict[str, Any]:
    """The run before, continued for two steps from its checkpoint, which Transformers loads too."""
    lr = (f"{ACTOR}.optim.lr=2.5e-4",)
    command = _command(bench, "verl-sync", "--resume", "--save-every", "6", options=lr, steps=14)
    found = _run(bench, "verl-resume", command)
    from transformers import AutoModelForCausalLM

    folder = bench.folder / "verl-sync" / found["checkpoint"]
    return found | {"transformers_loads": type(AutoModelForCausalLM.from_pretrained(folder)).__name__}


def train_smollm2(bench: Bench, model: Path) -> dict[str, Any]:
    """SmolLM2-135M, which was shown some conversations."""
    held = ("--eval-data", str(_agent(bench) / "held-out.jsonl"))
    lr = (f"{ACTOR}.optim.lr=1e-5",)
    return _run(bench, "smollm2-verl", _command(bench, "smollm2-verl", *held, options=lr, steps=12, model=str(model)))


def lora(bench: Bench) -> dict[str, Any]:
    """An adapter of rank 8."""
    options = (
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora_alpha=16",
        "actor_rollout_ref.model.target_modules=all-linear",
        f"{ROLLOUT}.load_format=safetensors",
        f"{ACTOR}.fsdp_config.model_dtype=bf16",
        f"{ACTOR}.optim.lr=1e-3",
    )
    return _run(bench, "verl-lora", _command(bench, "verl-lora", options=options, steps=4))


def interrupted(bench: Bench) -> dict[str, Any]:
    """`colocate_async`, ended with Ctrl-C after some steps: what is left of it."""
    options = ("trainer.v1.trainer_mode=colocate_async",)
    command = _command(bench, "verl-async", options=options, steps=1000)
    log = bench.folder / "verl-async.verl.jsonl"
    log.unlink(missing_ok=True)
    before, memory = _processes(), _gpu_memory()
    environment = bench.environment(trl=False) | {"VERL_FILE_LOGGER_PATH": str(log)}
    with (bench.folder / "verl-async.log").open("wb") as output:
        program = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            steps = _wait_for_steps(program, log, 4)
            began = time.monotonic()
            program.send_signal(signal.SIGINT)
            code = program.wait(120)
            seconds = time.monotonic() - began
            time.sleep(3)
            left = sorted(words for number, words in _processes().items() if number not in before)
            used = _gpu_memory()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    trained = [line for line in map(json.loads, log.read_text().splitlines()) if "timing_s/step" in line["data"]]
    return {
        "steps": steps,
        "step_s": _median([line["data"] for line in trained], "timing_s/step"),
        "exit_code": code,
        "seconds_to_end": round(seconds, 1),
        "processes_left": left,
        "gpu_mib_before_and_after": [memory, used],
    }


def _wait_for_steps(program: subprocess.Popen[bytes], log: Path, count: int) -> int:
    deadline = time.monotonic() + _RUN_SECONDS
    while time.monotonic() < deadline and program.poll() is None:
        done = [line for line in log.read_text().splitlines() if "timing_s/step" in line] if log.exists() else []
        if len(done) >= count:
            return len(done)
        time.sleep(0.5)
    raise RuntimeError(f"verl made no {count} steps; see {log.with_suffix('').with_suffix('.log')}")


def _gpu_memory() -> int:
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0])


def _processes() -> dict[int, str]:
    """The processes of this machine that are not the kernel's, by number."""
    found = {}
    for place in _numbers(Path("/proc")):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if words[0]:
                found[int(place.name)] = b" ".join(words[:3]).decode(errors="replace")[:80]
    return found


def _numbers(folder: Path) -> Iterator[Path]:
    return (place for place in folder.iterdir() if place.name.isdecimal())


VERL_CASES: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "verl-sync": sync,
    "verl-resume": resume,
    "verl-lora": lora,
    "verl-async": interrupted,
}
