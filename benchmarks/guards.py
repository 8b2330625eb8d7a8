"""What guards say: about runs with a known flaw, and about healthy runs with different seeds.

    python benchmarks/guards.py --flaws                  every flaw of tests/support/flawed_runs.py, three steps each
    python benchmarks/guards.py --healthy 20 --steps 6   the demo's problems, policy and settings, and a lighter agent
    python benchmarks/guards.py --demo 20                `make demo` itself, with other seeds

Adds to benchmarks/results/guards.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "guards.json"
DEMO = ROOT / "examples" / "strands_math_agent" / "demo.py"
sys.path.append(str(ROOT / "tests"))

from agentcore_rl_toolkit.studio.guards.guards import FILE, read_findings  # noqa: E402
from support.flawed_runs import FLAWS, HEALTHY, train_with  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flaws", action="store_true")
    parser.add_argument("--healthy", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--demo", type=int, default=0, metavar="SEEDS")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--first-seed", type=int, default=1000)
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + max(args.healthy, args.demo))
    for name in FLAWS if args.flaws else ():
        keep("flaws", name, measure_flaw(name))
    for seed in seeds[: args.healthy]:
        keep("healthy", str(seed), measure_healthy(seed, args.steps))
    for seed in seeds[: args.demo]:
        keep("demo", str(seed), measure_demo(seed))


def measure_flaw(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return {"wanted": FLAWS[name].guard} | measured(train_with(FLAWS[name], Path(folder)))


def measure_healthy(seed: int, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return measured(train_with(HEALTHY, Path(folder), seed=seed, steps=steps, rows=8, n=8))


def measure_demo(seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        command = [sys.executable, str(DEMO), "--seed", str(seed), "--output", str(output)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((output / "summary.json").read_text())
        return {name: summary[name] for name in ("before", "after", "fidelity", "rollouts")} | measured(output)


def measured(folder: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "steps": len(lines),
        "named": {one["guard"]: one["step"] for one in read_findings(folder / FILE)},
        "reward": [round(line.get("reward", float("nan")), 3) for line in lines],
        "kl_max": max(line["sampler/kl"] for line in lines),
        "surprise_z_max": round(max(abs(line["sampler/surprise_z"]) for line in lines), 2),
    }


def keep(kind: str, name: str, figures: dict[str, Any]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known.setdefault(kind, {})[name] = figures
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{time.strftime('%H:%M:%S')} {kind} {name}: {figures['named'] or 'nothing named'}", flush=True)


if __name__ == "__main__":
    main()
