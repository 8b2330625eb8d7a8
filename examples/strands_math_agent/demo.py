"""Trains the math agent on this machine: no cloud account, no GPU, no download. `make demo` runs it.

Every part of the real system is in the loop: sandboxed sessions on the local runtime, a real Strands agent, the
gateway, exact tokens, results through the store, GRPO by TRL. The policy is the built-in one, or any chat model.
"""

import argparse
import json
import re
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from problems import Split, problems

from agentcore_rl_toolkit.backends.trl import TrlSettings, train

AGENT = Path(__file__).parent / "rl_app.py"
TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="runs/demo", help="what is there is replaced (default: runs/demo)")
    parser.add_argument("--model", default="tiny", help="a folder or a hub id (default: tiny, the built-in policy)")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--held-out", type=int, default=128, help="held-out problems")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    output = Path(args.output)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    settings = TrlSettings(
        agent=str(AGENT),
        model=args.model,
        data=write(output / "train.jsonl", "train", 512, args.seed),
        eval_data=write(output / "held-out.jsonl", "held-out", args.held_out, args.seed),
        output=str(output),
        steps=args.steps,
        rows_per_step=8,
        n=8,
        learning_rate=args.learning_rate,
        batch_size=32,
        max_tokens=64,
        concurrency=16,
        timeout=120,
        save_every=args.steps,
        seed=args.seed,
    )
    what = f"{settings.steps} steps of 8 problems with 8 rollouts each"
    print(f"training {args.model} on {AGENT.parent.name}: {what}", flush=True)  # before the progress, also in a file
    summary = train(settings)
    show(summary)
    return 130 if summary["interrupted"] else 0


def write(path: Path, split: Split, count: int, seed: int) -> str:
    with path.open("w") as file:
        for problem in islice(problems(split, seed), count):
            file.write(json.dumps(problem.row) + "\n")
    return str(path)


def show(summary: dict[str, Any]) -> None:
    known = list(summary["examples"].values())
    for when, example in zip(("before", "after"), (known[0], known[-1]), strict=True) if known else ():
        verdict = "right" if example["reward"] == 1.0 else "wrong"
        print(f"\none held-out problem, {when} training ({verdict}; the answer is {example['payload']['answer']}):")
        for role, said in TURN.findall(example["text"][0]):
            if role != "system":
                print(f"  {role:>9}  " + " ".join(said.split()))
    print()
    for name in ("before", "after"):
        low, high = summary[f"{name}_interval"]
        print(f"held-out accuracy {name:>6}: {summary[name]:6.1%}  (95 % interval {low:.1%} to {high:.1%})")
    minutes, seconds = divmod(round(summary["seconds"]), 60)
    print(f"{summary['rollouts']} rollouts, fidelity {summary['fidelity']:.3f}, {minutes} min {seconds} s")


if __name__ == "__main__":
    sys.exit(main())
