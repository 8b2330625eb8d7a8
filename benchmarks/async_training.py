"""Asynchronous training against synchronous, in one run: steps per hour, what is trained on, stragglers.

    python benchmarks/async_training.py                   all cases
    python benchmarks/async_training.py --only bound      the others keep their figures

`bound` runs the scheduler on a fake clock, and `possible` adds up drawn seconds. The others run everything but a model
and an agent's process: client, gateway, runner, stream and steps ahead, over a runtime whose agent makes one model call
and then sleeps as tools do, log-normal with a mean of 2 s and one in a hundred above 20 s, times `--scale`. Training
sleeps too. A model and an agent's processes are in `async_demo.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import report
import step_bound
from async_floor import least_seconds, possible_ratios, tool_seconds

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

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
REFERENCE = 20_000
"""Lengths that trained ones are compared with."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="steps of each schedule")
    parser.add_argument("--scale", type=float, default=0.3, help="of all seconds of the schedules")
    parser.add_argument("--rollouts", type=int, default=2000, help="rollouts of each distribution")
    parser.add_argument("--only", nargs="+", help="these cases instead of all")
    args = parser.parse_args()
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "slots": slots,
        "bound": step_bound.step_ratios,
        "possible": possible_ratios,
        "schedule": lambda: schedules(args.steps, args.scale) | {"steps": args.steps, "scale": args.scale},
        "distribution": lambda: distributions(args.rollouts),
        "straggler": stragglers,
    }
    path = ROOT / "benchmarks" / "results" / "async_training.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    found = {name: of for name, of in found.items() if name in cases}
    for name in args.only or cases:
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
        self.draw = tool_seconds
        self._samples: Counter[str] = Counter()
        """How many samples of each prompt have started."""
        self.scale, self.failing = 1.0, 0.0
        """What tools' seconds are multiplied by, and the share of rollouts that fail after their tool."""

    async def _work(self, payload: dict[str, Any]) -> bytes | None:
        prompt = payload["prompt"]
        self._samples[prompt] += 1
        sample = self._samples[prompt]
        dice = random.Random(f"{prompt}/{sample}")  # the same in every schedule
        drawn = self.draw(dice)
        seconds = drawn * self.scale
        self.sampled.append(seconds)
        await ask(payload["_rollout"]["base_url"], words=words_of(drawn))
        if payload["hangs"] and sample == 1:
            return None
        await asyncio.sleep(seconds)
        if dice.random() < self.failing:
            return json.dumps({"status_code": 500}).encode()
        return json.dumps({"status_code": 200, "rewards": 1.0, "took": seconds}).encode()

    def run(self, steps: int, ahead: int, train_seconds: float, *, hangs: Sequence[int] = ()) -> list[list[Group]]:
        """One rollout never ends in each of the steps `hangs`."""
        rows = [
            [{"prompt": f"{step}.{row}", "hangs": step in hangs and not row} for row in range(ROWS)]
            for step in range(steps)
        ]
        taken: list[list[Group]] = []
        if not ahead:
            for some in rows:
                taken.append(list(self.runner.run(some)))
                time.sleep(train_seconds)
            return taken

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


def words_of(seconds: float) -> int:
    """The words of the model call before a tool that takes so long."""
    return 1 + int(8 * min(seconds, 40))


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
    """Steps per hour at K = 0, 1 and 3, of the same rollouts, and the least seconds for them on any number of slots."""
    found: dict[str, Any] = {}
    for ahead in (0, 1, 3):
        with pipeline() as made:
            made.scale = scale
            began = time.monotonic()
            taken = made.run(steps, ahead, TRAIN_SECONDS * scale)
            seconds = time.monotonic() - began
        longest = [max(one.result["took"] for group in step for one in group.trained if one.result) for step in taken]
        least = least_seconds(longest, [TRAIN_SECONDS * scale] * steps, ahead)
        found[str(ahead)] = {"seconds": round(seconds, 2), "steps_per_hour": 3600 * steps / seconds * scale}
        found[str(ahead)] |= {"ratio": found["0"]["seconds"] / seconds, "least": round(least, 2)}
        print("K =", ahead, found[str(ahead)], flush=True)
    return found


def distributions(rollouts: int) -> dict[str, Any]:
    """Kolmogorov-Smirnov tests of trained rollouts against lengths that are drawn apart from any run.

    One rollout in twenty fails, so what is trained on is never just all that was sampled.
    """
    steps, dice = -(-rollouts // (ROWS * N)), random.Random("reference")
    drawn = [tool_seconds(dice) for _ in range(REFERENCE)]
    found: dict[str, Any] = {}
    for name, ahead, oversample in (("sync", 0, 0), ("async, K = 3", 3, 0), ("sync, oversample = 4", 0, 4)):
        with pipeline(oversample=oversample) as made:
            made.scale, made.failing = 0.05, 0.05
            taken = made.run(steps, ahead, 0.0)
            kept = [one for groups in taken for group in groups for one in group.trained if one.result]
            trained = [one.result["took"] for one in kept if one.result]
            found[name] = {"sampled": len(made.sampled), "trained": len(trained), "reference": REFERENCE}
            found[name] |= compare(trained, [each * made.scale for each in drawn])
            shortest = min(made.lengths) - 1  # the tokens around the words
            lengths = [sum(row.trained for row in one.rows) for one in kept]
            found[name]["tokens"] = compare(lengths, [shortest + words_of(each) for each in drawn])
        print(name, found[name], flush=True)
    return found


def compare(trained: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """The mean of what was trained on against that of the reference, and the Kolmogorov-Smirnov test."""
    return ks(trained, reference) | {"mean_ratio": statistics.fmean(trained) / statistics.fmean(reference)}


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
    """Of 16 steps, a rollout never ends in none, in one, or in each; its timeout is 4 s, and all else is quick."""
    found: dict[str, Any] = {"steps": 16}
    for ahead in (0, 1, 3):
        known = found[str(ahead)] = {}
        for name, hangs in (("none", []), ("one", [7]), ("each", range(16))):
            with pipeline(timeout=4.0, slots=4 * SLOTS) as made:
                made.scale = 0.01
                began = time.monotonic()
                made.run(16, ahead, 0.0, hangs=hangs)
                known[name] = round((time.monotonic() - began) / 4.0, 2)
        known["least"] = least_seconds([1.0] * 16, [0.0] * 16, ahead)
        print("stragglers, K =", ahead, known, flush=True)
    return found


if __name__ == "__main__":
    main()
