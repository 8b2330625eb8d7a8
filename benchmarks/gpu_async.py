"""Synchronous and asynchronous training side by side on one GPU: step time, and how busy the GPU is.

    python benchmarks/gpu_async.py
    python benchmarks/gpu_async.py --model qwen3-0.6b --engine engine colocate --ahead 0 1 3 --sleep 2.0

For each engine (the one in this process, and `--vllm colocate`) and each K of `--ahead`, its own run process. The
agent is the math agent, which waits before its first model call, as for a slow tool: `--sleep` seconds on average,
log-normal. The first step of a run is left out. `--model smollm2-135m` and `qwen3-0.6b` have those shapes, and made
weights. Results go to benchmarks/results/gpu_async.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import report
from gpu import SHAPES, make_model, measured_here

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "examples" / "strands_math_agent"
ENGINES: dict[str, dict[str, Any]] = {
    "engine": {},
    "colocate": {
        "vllm": "colocate",
        "options": {"vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": 1024},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--engine", choices=ENGINES, nargs="+", default=["engine"])
    parser.add_argument("--ahead", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("-n", type=int, default=8)
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--sleep", type=float, default=0.3)
    parser.add_argument("--seconds", type=float, default=240.0, help="time limit of a run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print("RESULT " + json.dumps(_run(args, json.loads(args.one))))
        return
    found: dict[str, Any] = {}
    for engine in args.engine:
        for ahead in args.ahead:
            name = f"{engine}, K = {ahead}"
            found[name] = _in_process(args, engine, ahead)
            print(name, json.dumps(found[name]), flush=True)
    model = f"{args.model}'s shape with made weights" if args.model in SHAPES else f"the model {args.model}"
    report.write("gpu_async", measured_here() | {"model": model, "settings": vars(args), "runs": found})
    if failed := [name for name, it in found.items() if "error" in it]:
        sys.exit(f"failed: {', '.join(failed)}")


def _in_process(args: argparse.Namespace, engine: str, ahead: int) -> dict[str, Any]:
    command = [sys.executable, __file__, *sys.argv[1:], "--one", json.dumps([engine, ahead])]
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TRL_EXPERIMENTAL_SILENCE": "1"}
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=args.seconds, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"no end after {args.seconds:.0f} s"}
    lines = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
    return dict(json.loads(lines[-1][7:])) if lines else {"error": ended.stderr[-1500:]}


def _run(args: argparse.Namespace, which: list[Any]) -> dict[str, Any]:
    sys.path.insert(0, str(AGENT))
    from problems import problems

    from agentcore_rl_toolkit.backends.trl import TrlSettings, train

    engine, ahead = which
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.jsonl")
        rows.write_text("".join(json.dumps(one.row) + "\n" for one in islice(problems("train", 0), 8 * args.rows)))
        settings = TrlSettings(
            agent=sleeping_agent(Path(folder, "agent"), args.sleep),
            data=str(rows),
            model=str(make_model(Path(folder), args.model)) if args.model in SHAPES else args.model,
            output=str(Path(folder, "run")),
            steps=args.steps,
            rows_per_step=args.rows,
            n=args.n,
            batch_size=args.rows * args.n,
            concurrency=args.concurrency,
            tps_limit=1000.0,
            max_tokens=args.max_tokens,
            dtype="bfloat16",
            save_every=10_000,
            failures={"truncated": "train", "agent_error": "train"},
            async_steps=ahead,
            **ENGINES[engine],
        )
        with Utilization() as used:
            summary = train(settings)
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    later = lines[1:]
    names = ("seconds/rollouts", "slots_used", "staleness/mean", "staleness/max", "off_policy/ratio")
    means = {
        name: statistics.fmean(line[name] for line in later) for name in names if all(name in one for one in later)
    }
    return {
        "step_seconds": round(statistics.median(line["step_time"] for line in later), 3),
        "gpu_utilization": used.mean(),
        "tokens_per_second": statistics.median(line["tokens_per_second"] for line in later),
        "truncated": max((line.get("off_policy/truncated", 0.0) for line in later), default=0.0),
        "sampler_kl": [line.get("sampler/kl") for line in lines],
        "fidelity": summary["fidelity"],
    } | means


def sleeping_agent(folder: Path, mean: float) -> str:
    """The math agent with a wait before its first model call: log-normal, one in a hundred ten times the mean."""
    shutil.copytree(AGENT, folder)
    path = folder / "rl_app.py"
    text, call = path.read_text(), "    response = agent(question.prompt)\n"
    assert text.count(call) == 1
    wait = f"    time.sleep({mean / 2} * random.lognormvariate(-0.328, 1.429))\n"
    path.write_text(
        text.replace(call, wait + call).replace("from typing", "import random\nimport time\nfrom typing", 1)
    )
    return str(path)


class Utilization:
    """Asks nvidia-smi for the GPU's utilization every half second."""

    def __enter__(self) -> Utilization:
        self._values: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def mean(self) -> float | None:
        """In percent, of the second half of the run; None without a GPU."""
        late = self._values[len(self._values) // 2 :]
        return round(statistics.fmean(late), 1) if late else None

    def _watch(self) -> None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self._over.wait(0.5):
            try:
                said = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
                self._values.append(float(said.splitlines()[0]))
            except (OSError, IndexError, ValueError, subprocess.SubprocessError):
                return


if __name__ == "__main__":
    main()
