"""Asynchronous training against synchronous, in one run: steps per hour, what is trained on, stragglers, kills.

    python benchmarks/async_training.py                                    slots, schedule, distribution, straggler
    python benchmarks/async_training.py --only kills demo --kills 50       the others keep their figures

The first four run everything but a model and an agent's process: client, gateway, runner, stream and steps ahead, over
a runtime whose agent makes one model call and then sleeps as tools do, log-normal with a mean of 2 s and one in a
hundred above 20 s, times `--scale`. Training sleeps too. The demo is the math agent with a calculator that sleeps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import report

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "examples" / "strands_math_agent"
sys.path[:0] = [str(AGENT), str(ROOT / "tests")]

from agentcore_rl_toolkit import Gateway, RolloutClient  # noqa: E402
from agentcore_rl_toolkit.backends.loop.steps_ahead import StepsAhead  # noqa: E402
from agentcore_rl_toolkit.engine import SampleRequest  # noqa: E402
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine  # noqa: E402
from agentcore_rl_toolkit.rollout import Group, RolloutOptions, RolloutRunner, RolloutStream  # noqa: E402
from agentcore_rl_toolkit.rollout.run_folder import RunWriter  # noqa: E402
from support.own_runtime import OwnRuntime  # noqa: E402
from support.tokenizers import make_tokenizer  # noqa: E402

ROWS, N, SLOTS = 8, 8, 64
TRAIN_SECONDS = 2.0


def tool_seconds(dice: random.Random) -> float:
    """Log-normal: a mean of 2 s, and 20 s at the 99th percentile."""
    return dice.lognormvariate(-0.328, 1.429)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="steps of each schedule")
    parser.add_argument("--scale", type=float, default=0.3, help="of all seconds of the schedules")
    parser.add_argument("--rollouts", type=int, default=2000, help="rollouts of each distribution")
    parser.add_argument("--demo", type=int, default=8, help="steps of the demo, at K = 0, 1 and 3")
    parser.add_argument("--seeds", type=int, default=3, help="of the demo")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--only", nargs="+", default=["slots", "schedule", "distribution", "straggler"])
    args = parser.parse_args()
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "slots": slots,
        "schedule": lambda: schedules(args.steps, args.scale) | {"steps": args.steps, "scale": args.scale},
        "distribution": lambda: distributions(args.rollouts),
        "straggler": stragglers,
        "demo": lambda: demos(args.demo, args.seeds),
        "kills": lambda: kills(args.kills),
    }
    path = ROOT / "benchmarks" / "results" / "async_training.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    found.pop("machine", None)
    for name in args.only:
        found[name] = cases[name]()
        report.write("async_training", found)


# --- the pipeline without a model ------------------------------------------------------------------------------------


class Pipeline:
    """Runs steps of sleeping rollouts, synchronously or ahead, and keeps what was sampled and what was trained on."""

    def __init__(
        self, folder: Path, stack: ExitStack, *, oversample: int = 0, timeout: float = 900.0, slots: int = SLOTS
    ) -> None:
        self.sampled: list[float] = []
        """The seconds of each rollout's tool."""
        self.lengths: list[int] = []
        """The tokens of each rollout's reply, more of them before a longer call."""
        tokenizer = make_tokenizer()
        word = tokenizer.encode("four")[:1]

        def reply(request: SampleRequest) -> list[int]:
            self.lengths.append(len(request.prompt) + 1)
            return [*word * len(request.prompt), tokenizer.eos_token_id]

        gateway = stack.enter_context(Gateway(ScriptedEngine(reply), tokenizer=tokenizer))
        client = stack.enter_context(RolloutClient(OwnRuntime(self._work), folder / "results", "exp", tps_limit=None))
        self.writer = stack.enter_context(RunWriter(folder / "run"))
        options = RolloutOptions(
            n=N, max_concurrent_sessions=slots, oversample=oversample, timeout=timeout, keep_dropped=True,
            max_failures=10**9,
        )  # fmt: skip
        self.runner = stack.enter_context(closing(RolloutRunner(client, gateway, options)))
        self.dice, self.draw = random.Random(0), tool_seconds
        self.scale, self.hang = 1.0, 0

    async def _work(self, payload: dict[str, Any]) -> bytes | None:
        drawn = self.draw(self.dice)
        seconds = drawn * self.scale
        self.sampled.append(seconds)
        await ask(payload["_rollout"]["base_url"], words=1 + int(8 * min(drawn, 40)))
        if payload["hangs"] and self.hang:
            self.hang -= 1
            return None
        await asyncio.sleep(seconds)
        return json.dumps({"status_code": 200, "rewards": 1.0, "took": seconds}).encode()

    def run(self, steps: int, ahead: int, train_seconds: float, *, hangs: bool = False) -> list[list[Group]]:
        rows = [
            [{"prompt": f"{step}.{row}", "hangs": hangs and not row} for row in range(ROWS)] for step in range(steps)
        ]
        taken: list[list[Group]] = []
        if not ahead:
            for some in rows:
                self.hang = 1 if hangs else 0
                taken.append(list(self.runner.run(some)))
                time.sleep(train_seconds)
            return taken
        self.hang = steps if hangs else 0

        def open_step(stream: RolloutStream, step: int) -> Any:
            return self.writer.open_part("train", step), stream.add(rows[step])

        running = StepsAhead(RolloutStream(self.runner), open_step, ahead=ahead, start=0, steps=steps)
        for step in range(steps):
            running.advance(step)
            taken.append(running.take(step)[1])
            time.sleep(train_seconds)
        running.close()
        return taken

    def fill(self, groups: int) -> dict[str, float]:
        """One step of so many groups: the share of slots in use until the last group starts, and the whole step."""
        last = threading.Event()

        def rows() -> Iterator[dict[str, Any]]:
            for row in range(groups):
                if row == groups - 1:
                    last.set()
                yield {"prompt": str(row), "hangs": False}

        stream = RolloutStream(self.runner)
        began, _ = stream.usage()
        done = stream.add(rows())
        last.wait()
        at, used = stream.usage()
        done.result()
        seconds = stream.usage()[0] - began
        stream.close()
        bound = max(sum(self.sampled) / stream.slots, *self.sampled)
        return {
            "rollouts": len(self.sampled),
            "in_use": used / (stream.slots * (at - began)),
            "seconds": round(seconds, 2),
            "ratio": seconds / bound,
        }


async def ask(base_url: str, words: int) -> None:
    """One model call, with a reply as long as the prompt."""
    import aiohttp

    body = {"model": "scripted", "messages": [{"role": "user", "content": "two " * words}]}
    async with aiohttp.ClientSession() as session, session.post(f"{base_url}/chat/completions", json=body) as reply:
        assert reply.status == 200, await reply.text()


@contextmanager
def pipeline(**options: Any) -> Iterator[Pipeline]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        yield Pipeline(Path(folder), stack, **options)


def slots() -> dict[str, Any]:
    """One synchronous step on 32 and 128 slots, eight rollouts for each, against the least that any schedule takes."""
    found: dict[str, Any] = {}
    for name, draw in (("exponential", lambda dice: dice.expovariate(0.5)), ("log-normal", tool_seconds)):
        for number in (32, 128):
            with pipeline(slots=number) as made:
                made.draw = draw
                found[f"{name}, {number} slots"] = made.fill(8 * number // N)
            print(f"{name}, {number} slots", found[f"{name}, {number} slots"], flush=True)
    return found


def schedules(steps: int, scale: float) -> dict[str, Any]:
    """Steps per hour at K = 0, 1 and 3."""
    found: dict[str, Any] = {}
    for ahead in (0, 1, 3):
        with pipeline() as made:
            made.scale = scale
            began = time.monotonic()
            made.run(steps, ahead, TRAIN_SECONDS * scale)
            seconds = time.monotonic() - began
        found[str(ahead)] = {"seconds": round(seconds, 2), "steps_per_hour": 3600 * steps / seconds * scale}
        found[str(ahead)]["ratio"] = found["0"]["seconds"] / seconds
        print("K =", ahead, found[str(ahead)], flush=True)
    return found


def distributions(rollouts: int) -> dict[str, Any]:
    """Kolmogorov-Smirnov tests of how long trained and sampled rollouts took."""
    steps = -(-rollouts // (ROWS * N))
    found: dict[str, Any] = {}
    for name, ahead, oversample in (("sync", 0, 0), ("async, K = 3", 3, 0), ("sync, oversample = 4", 0, 4)):
        with pipeline(oversample=oversample) as made:
            made.scale = 0.05
            taken = made.run(steps, ahead, 0.0)
            kept = [one for groups in taken for group in groups for one in group.trained if one.result]
            trained = [one.result["took"] for one in kept if one.result]
            found[name] = {"sampled": len(made.sampled), "trained": len(trained)} | compare(trained, made.sampled)
            lengths = [sum(row.trained for row in one.rows) for one in kept]
            found[name]["tokens"] = compare(lengths, made.lengths)
        print(name, found[name], flush=True)
    return found


def compare(trained: Sequence[float], sampled: Sequence[float]) -> dict[str, float]:
    """The mean of what was trained on against that of what was sampled, and the Kolmogorov-Smirnov test."""
    return ks(trained, sampled) | {"mean_ratio": statistics.fmean(trained) / statistics.fmean(sampled)}


def ks(some: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """The two-sample statistic and its asymptotic p-value."""
    import math

    import numpy as np

    a, b = np.sort(some), np.sort(others)
    every = np.concatenate([a, b])
    distance = float(
        np.abs(np.searchsorted(a, every, "right") / len(a) - np.searchsorted(b, every, "right") / len(b)).max()
    )
    root = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    scaled = (root + 0.12 + 0.11 / root) * distance
    tail = 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return {"distance": distance, "p": 1.0 if scaled < 0.2 else max(0.0, min(1.0, tail))}


def stragglers() -> dict[str, Any]:
    """In each of four steps one rollout never ends; its timeout is 4 s, and everything else is quick."""
    found = {}
    for ahead in (0, 3):
        with pipeline(timeout=4.0) as made:
            made.scale = 0.01
            began = time.monotonic()
            made.run(4, ahead, 0.0, hangs=True)
            found[str(ahead)] = {"timeouts": round((time.monotonic() - began) / 4.0, 2)}
    print("stragglers", found, flush=True)
    return found


# --- the demo ---------------------------------------------------------------------------------------------------------


def demos(steps: int, seeds: int) -> dict[str, Any]:
    """The demo's policy, with a calculator that sleeps: steps per hour, and the held-out reward."""
    found: dict[str, Any] = {}
    for seed, ahead in ((seed, ahead) for seed in range(seeds) for ahead in (0, 1, 3)):
        with tempfile.TemporaryDirectory() as folder:
            program = start_demo(Path(folder), steps, ahead, seed)
            assert program.wait(1800) == 0, Path(folder, "log").read_text()[-3000:]
            summary = json.loads(Path(folder, "run", "summary.json").read_text())
            lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
        seconds = sum(line["seconds"] for line in lines[1:])
        names = ("before", "after", "after_interval")
        one = {name: summary[name] for name in names} | {"seconds": seconds, "rollouts": summary["rollouts"]}
        found[f"seed {seed}, K = {ahead}"] = one | {
            "ratio": found[f"seed {seed}, K = 0"]["seconds"] / seconds if ahead else 1
        }
        print(f"seed {seed}, K = {ahead}", found[f"seed {seed}, K = {ahead}"], flush=True)
    return found


_RUN = """
import json, sys
from agentcore_rl_toolkit.backends.trl import TrlSettings, train
train(TrlSettings.from_mapping(json.loads(sys.argv[1])))
"""


def start_demo(folder: Path, steps: int, ahead: int, seed: int, **more: Any) -> subprocess.Popen[bytes]:
    from problems import problems

    if not (folder / "agent").exists():
        shutil.copytree(AGENT, folder / "agent")
        path = folder / "agent" / "calculator.py"
        text, call = path.read_text(), "    return evaluate(expression)\n"
        assert text.count(call) == 1
        wait = "    time.sleep(random.lognormvariate(-0.328, 1.429))\n"
        path.write_text(
            text.replace(call, wait + call).replace("import ast\n", "import ast\nimport random\nimport time\n")
        )
        for split, number in (("train", 256), ("held-out", 64)):
            rows = [json.dumps(one.row) + "\n" for one in islice(problems(split, seed), number)]
            (folder / f"{split}.jsonl").write_text("".join(rows))
    settings = {
        "agent": str(folder / "agent" / "rl_app.py"), "model": "tiny", "data": str(folder / "train.jsonl"),
        "eval_data": str(folder / "held-out.jsonl"), "output": str(folder / "run"), "steps": steps, "rows_per_step": 4,
        "n": 4, "learning_rate": 2.5e-4, "batch_size": 16, "max_tokens": 64, "concurrency": 16, "timeout": 120.0,
        "save_every": steps, "seed": seed, "async_steps": ahead, "device": "cpu",
    } | more  # fmt: skip
    with (folder / "log").open("ab") as log:
        command = [
            sys.executable,
            "-c",
            _RUN,
            json.dumps({name: value for name, value in settings.items() if value is not None}),
        ]
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


# --- kills -----------------------------------------------------------------------------------------------------------


def kills(number: int) -> dict[str, Any]:
    """Kill runs at random moments, resume them, and count what each step has trained on at the end."""
    from agentcore_rl_toolkit.backends.loop.rows.row_order import RowOrder, name_sources
    from agentcore_rl_toolkit.rollout import read_rollouts

    dice, done, wrong, runs = random.Random(0), 0, 0, 0
    while done < number:
        with tempfile.TemporaryDirectory() as name:
            folder, steps = Path(name), 12
            for attempt in count():
                program = start_demo(folder, steps, 2, 0, eval_data=None, save_every=2, resume=True, rows_per_step=2)
                try:
                    program.wait(dice.uniform(8, 40) if done < number and attempt < 5 else 900)
                except subprocess.TimeoutExpired:
                    program.send_signal(signal.SIGKILL)
                    done += 1
                if program.wait() == 0:
                    break
            rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
            files = sorted((folder / "run" / "rollouts").iterdir())
            wrong += len(files) != steps
            order = RowOrder(name_sources([("train.jsonl", len(rows), 1.0)]), 2, 0)
            for step, file in enumerate(files):
                wanted = Counter(rows[number]["prompt"] for number in order.step(step) for _ in range(4))
                wrong += Counter(one.payload["prompt"] for one in read_rollouts(file)) != wanted
            runs += 1
        print(f"{done} kills in {runs} runs, {wrong} steps wrong", flush=True)
    return {"kills": done, "runs": runs, "wrong": wrong}


if __name__ == "__main__":
    main()
