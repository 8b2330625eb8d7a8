"""The math agent with a calculator that sleeps, trained synchronously and asynchronously; and killed at random moments.

    python benchmarks/async_demo.py                       three seeds at K = 0, 1 and 3: about half an hour
    python benchmarks/async_demo.py --only kills          50 kills: about half an hour
    python benchmarks/async_demo.py --at-once 3           the seeds side by side, where there are cores for it

Each seed runs K = 0, 1 and 3 one after the other; the trainer, the sampler and the sessions share the machine's cores.
Every run says how much of them was busy, and the floor of `async_floor.py`: the least seconds for the rollouts of the
seed's synchronous run, and for those of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Semaphore
from typing import Any

import report
from async_floor import least_seconds

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "examples" / "strands_math_agent"
sys.path[:0] = [str(AGENT)]

from agentcore_rl_toolkit.backends.loop.held_out import held_out_outcome  # noqa: E402
from agentcore_rl_toolkit.backends.loop.rows.row_order import RowOrder, name_sources  # noqa: E402
from agentcore_rl_toolkit.client.evaluation import Outcome, compare, summarize  # noqa: E402
from agentcore_rl_toolkit.rollout import Rollout, read_rollouts  # noqa: E402

AHEAD = (0, 1, 3)
ROWS, N = 4, 4
SLOTS = ROWS * N * (max(AHEAD) + 1)
"""As many as can be used at the largest K; a synchronous step uses a quarter of them."""
HELD_OUT = 64
KILLED_AFTER = 8, 40
"""Seconds from a start, at the least and at the most."""
_MOST_KILLS = 5
"""Of one run, before it may end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=1, help="seeds, or killed runs, at a time (default: 1)")
    parser.add_argument("--only", nargs="+", default=["demo"], choices=["demo", "kills"])
    args = parser.parse_args()
    cases: dict[str, Callable[[], dict[str, Any]]] = {
        "demo": lambda: demos(args.steps, args.seeds, args.at_once),
        "kills": lambda: kills(args.kills, args.at_once),
    }
    path = ROOT / "benchmarks" / "results" / "async_demo.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    found.pop("machine", None)
    for name in args.only:
        found[name] = cases[name]()
        report.write("async_demo", found)


# --- steps per hour, and the held-out reward --------------------------------------------------------------------------


def demos(steps: int, seeds: int, at_once: int) -> dict[str, Any]:
    """Every run, and what they come to together."""
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(lambda seed: demos_of(seed, steps), range(seeds)))
    runs = {name: run for of_seed, _ in found for name, run in of_seed.items()}
    held_out = {ahead: [one for _, evaluated in found for one in evaluated[ahead]] for ahead in AHEAD}
    together = {str(ahead): summary(runs, held_out, ahead) for ahead in AHEAD}
    for one in runs.values():
        del one["longest"], one["training"]
    settings = {"steps": steps, "seeds": seeds, "at_once": at_once, "slots": SLOTS, "rollouts": ROWS * N}
    return settings | {"runs": runs, "together": together}


def demos_of(seed: int, steps: int) -> tuple[dict[str, dict[str, Any]], dict[int, list[Outcome]]]:
    """A seed's run at each K, and what each came to on the held-out rows."""
    runs: dict[str, dict[str, Any]] = {}
    held_out: dict[int, list[Outcome]] = {}
    for ahead in AHEAD:
        with tempfile.TemporaryDirectory() as folder:
            began, busy = time.monotonic(), busy_seconds()
            program = start_demo(Path(folder), steps, ahead, seed)
            assert program.wait(3600) == 0, Path(folder, "log").read_text()[-3000:]
            cores = (busy_seconds() - busy) / (time.monotonic() - began)
            one = measure(Path(folder, "run"), steps, ahead)
            held_out[ahead] = last_evaluation(Path(folder, "run"), seed)
        runs[name := f"seed {seed}, K = {ahead}"] = one
        sync = runs[f"seed {seed}, K = 0"]
        possible = least_seconds(sync["longest"], sync["training"], ahead)
        one |= {"busy_cores": cores, "possible": sync["seconds"] / possible}
        one["ratio"] = sync["seconds"] / one["seconds"]
        print(name, one, flush=True)
    return runs, held_out


def summary(runs: dict[str, dict[str, Any]], held_out: dict[int, list[Outcome]], ahead: int) -> dict[str, Any]:
    """All seeds at one K against all at K = 0; the held-out rewards are paired by seed and row."""
    pairs = [(runs[name.rpartition(" ")[0] + " 0"], run) for name, run in runs.items() if name.endswith(f"= {ahead}")]
    before, after = (sum(run["seconds"] for run in some) for some in zip(*pairs, strict=True))
    least = sum(sync["seconds"] / run["possible"] for sync, run in pairs)
    mine = summarize(held_out[ahead])
    found = {
        "seconds": after,
        "ratio": before / after,
        "ratios": sorted(run["ratio"] for _, run in pairs),
        "possible": before / least,
        "over_floor": after / sum(run["floor"] for _, run in pairs),
        "longest": sum(run["longest_mean"] for _, run in pairs) / len(pairs),
        "training": sum(run["training_mean"] for _, run in pairs) / len(pairs),
        "busy_cores": sum(run["busy_cores"] for _, run in pairs) / len(pairs),
        "held_out": mine.reward,
        "interval": mine.interval,
    }
    if ahead:
        found["difference"] = compare(held_out[0], held_out[ahead]).to_dict()
    return found


def measure(run: Path, steps: int, ahead: int) -> dict[str, Any]:
    """The seconds of the whole training, and the least that any schedule takes for its rollouts at this K."""
    text = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    training = [line["seconds"] - line["seconds/rollouts"] for line in lines]
    longest = [max(map(seconds_of, read_rollouts(path))) for path in sorted((run / "rollouts").iterdir())]
    assert len(lines) == len(longest) == steps
    names = ("before", "after", "after_interval")
    floor = least_seconds(longest, training, ahead)
    found = {name: text[name] for name in names} | {"seconds": sum(line["seconds"] for line in lines), "floor": floor}
    found |= {"longest_mean": sum(longest) / steps, "training_mean": sum(training) / steps}
    return found | {"longest": longest, "training": training}


def seconds_of(rollout: Rollout) -> float:
    """From its start to its end; those of the model are among the others."""
    return sum(seconds for name, seconds in rollout.seconds.items() if name != "model")


def last_evaluation(run: Path, seed: int) -> list[Outcome]:
    path = max((run / "evaluations").iterdir())
    outcomes = [held_out_outcome(rollout, 0.0) for rollout in read_rollouts(path)]
    return [Outcome(f"{seed}/{one.input_id}", one.session_id, one.status, one.reward, one.seconds) for one in outcomes]


def busy_seconds() -> float:
    """The CPU seconds that this machine has used since its start."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


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
        for split, number in (("train", 256), ("held-out", HELD_OUT)):
            rows = [json.dumps(one.row) + "\n" for one in islice(problems(split, seed), number)]
            (folder / f"{split}.jsonl").write_text("".join(rows))
    settings = {
        "agent": str(folder / "agent" / "rl_app.py"), "model": "tiny", "data": str(folder / "train.jsonl"),
        "eval_data": str(folder / "held-out.jsonl"), "output": str(folder / "run"), "steps": steps,
        "rows_per_step": ROWS, "n": N, "learning_rate": 2.5e-4, "batch_size": 16, "max_tokens": 64,
        "concurrency": SLOTS, "timeout": 120.0, "save_every": steps, "seed": seed, "async_steps": ahead,
        "device": "cpu",
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


STEPS, KILLED_AHEAD, KILLED_ROWS = 12, 2, 2


def kills(number: int, at_once: int) -> dict[str, Any]:
    """Kill runs at random moments, resume them, and check at the end what each has trained on."""
    left = Semaphore(number)
    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(lambda seed: killed_runs(random.Random(seed), left), range(at_once))
        runs = [run for some in found for run in some]
    wrong = sum((wrong for _, wrong in runs), Counter[str]())
    done = sum(killed for killed, _ in runs)
    return {"kills": done, "runs": len(runs), "wrong": wrong.total(), "kinds": dict(wrong)}


def killed_runs(dice: random.Random, left: Semaphore) -> list[tuple[int, Counter[str]]]:
    """Runs, one after the other, until all kills are spent: how often each was killed, and what is wrong with it."""
    runs = []
    while left.acquire(blocking=False):
        with tempfile.TemporaryDirectory() as name:
            folder, killed = Path(name), 0
            more = {"eval_data": None, "save_every": 2, "resume": True, "rows_per_step": KILLED_ROWS, "concurrency": 16}
            while True:
                program = start_demo(folder, STEPS, KILLED_AHEAD, 0, **more)
                may_kill = killed == 0 or (killed < _MOST_KILLS and left.acquire(blocking=False))
                if not kill_during(program, dice.uniform(*KILLED_AFTER) if may_kill else 900):
                    break
                assert may_kill, "no end after 900 s"
                killed += 1
            assert program.returncode == 0, (folder / "log").read_text()[-3000:]
            if may_kill:  # it ended before
                left.release()
            runs.append((killed, Counter(what_is_wrong(folder, STEPS, KILLED_AHEAD, KILLED_ROWS))))
        print(f"killed {killed} times: {dict(runs[-1][1]) or 'all rows as without'}", flush=True)
        if not killed:
            break
    return runs


def kill_during(program: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait so long for a run, and kill it if it has not ended; says whether it did."""
    try:
        program.wait(seconds)
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGKILL)
        return True
    return False


def what_is_wrong(folder: Path, steps: int, ahead: int, rows_per_step: int) -> list[str]:
    """What a run that was killed and resumed has lost, doubled, or trained on too late."""
    data = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    files = sorted((folder / "run" / "rollouts").iterdir())
    order = RowOrder(name_sources([("train.jsonl", len(data), 1.0)]), rows_per_step, 0)
    problems = [] if len(files) == steps else ["files"]
    if [line["step"] for line in lines] != list(range(1, steps + 1)):
        problems.append("metrics")
    sessions: list[Any] = []
    for step, file in enumerate(files):
        rollouts = list(read_rollouts(file))
        sessions += [one.session_id for one in rollouts]
        wanted = Counter(data[place]["prompt"] for place in order.step(step) for _ in range(N))
        if Counter(one.payload["prompt"] for one in rollouts) != wanted:
            problems.append("rows")
        if not ages(step, rollouts) <= set(range(ahead + 1)):
            problems.append("age")
    return problems if len(sessions) == len(set(sessions)) else [*problems, "sessions"]


def ages(step: int, rollouts: Sequence[Rollout]) -> set[int]:
    """How many updates before its training each of a step's tokens was sampled."""
    return {step - int(version) for one in rollouts for row in one.rows for version, _, _ in row.versions}


if __name__ == "__main__":
    main()
