"""Credit by turn against credit by rollout: is it unbiased, and does it learn faster from rewards on the way?

`bias`: a decision process whose trajectories can all be listed (`tests/support/mdp.py`). The gradient that 100,000
sampled rollouts in groups of 4 estimate, against the enumerated one, in standard errors.

`task`: six turns, each with an observation and one right action of four; a right one is rewarded at once. The policy is
a table of logits, sampled here: no gateway, agent or model. From there on it is the package's own path: `Rollout`s and
`Group`s, advantages and examples as for Tinker (`backends/loop/service_examples.py`), its importance-sampling loss by
hand, and Adam. `rollout` gets the sum of the six rewards in one number, in GRPO's standard deviations, as a trainer
does by default; `rollout, unscaled` without the division; `outcome only` gets a list, of which the last reward counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from array import array
from typing import Any

import numpy as np
from report import ROOT, write_to

from agentcore_rl_toolkit.backends.loop.service_examples import to_examples
from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.engine.base import IDS
from agentcore_rl_toolkit.gateway.record.trajectory import Fidelity, Row, TurnSpan
from agentcore_rl_toolkit.rollout import Action, Group, Rollout
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from agentcore_rl_toolkit.types import Status

sys.path.insert(0, str(ROOT / "tests"))
from support.mdp import Mdp, estimate

TURNS, CHOICES, ROWS, N = 6, 4, 4, 8
TARGET, MOST_STEPS, RATE = 0.9, 600, 0.05
ACTION = TURNS * CHOICES  # ids below are observations, by turn
VARIANTS: dict[str, dict[str, Any]] = {
    "turn": {"credit": TurnCredit()},
    "rollout": {"scale": True},
    "rollout, unscaled": {"scale": False},
    "outcome only": {"scale": True},
}


def bias(rollouts: int, n: int = 4) -> dict[str, float]:
    """How far the estimate is from the enumerated gradient, in standard errors of each weight."""
    mdp, dice, credit = Mdp(), np.random.default_rng(0), TurnCredit()
    groups = [estimate([mdp.sample(dice) for _ in range(n)], credit.advantages) for _ in range(rollouts // n)]
    error = np.std(groups, axis=0, ddof=1) / np.sqrt(len(groups))
    apart = (np.mean(groups, axis=0) - mdp.gradient()) / error
    return {"rollouts": rollouts, "largest": float(np.abs(apart).max()), "rms": float(np.sqrt((apart**2).mean()))}


class Learner:
    """A policy, sampled and trained."""

    def __init__(self, variant: str, seed: int) -> None:
        self.variant, self.dice = variant, np.random.default_rng(seed)
        self.logits = np.zeros((TURNS, CHOICES, CHOICES))
        self.moments = np.zeros((2, *self.logits.shape))

    def run(self) -> int:
        """Steps until nine in ten actions are right; more than the most if that never happens."""
        for step in range(1, MOST_STEPS + 1):
            groups = [self.group(index) for index in range(ROWS)]
            self.update(to_examples(groups, **VARIANTS[self.variant]), step)
            if self.share_right() >= TARGET:
                return step
        return MOST_STEPS + 1

    def share_right(self) -> float:
        chances = self.chances()
        right = [chances[turn, seen, (seen + turn) % CHOICES] for turn in range(TURNS) for seen in range(CHOICES)]
        return float(np.mean(right))

    def chances(self) -> Any:
        raised = np.exp(self.logits - self.logits.max(axis=2, keepdims=True))
        return raised / raised.sum(axis=2, keepdims=True)

    def group(self, index: int) -> Group:
        seen = self.dice.integers(CHOICES, size=TURNS)
        rollouts = tuple(self.rollout(seen, sample) for sample in range(N))
        return Group(index, f"row-{index}", {}, rollouts)

    def rollout(self, seen: Any, sample: int) -> Rollout:
        chances, ids, logprobs, rewards = self.chances(), [], [], []
        for turn in range(TURNS):
            chosen = int(self.dice.choice(CHOICES, p=chances[turn, seen[turn]]))
            ids += [turn * CHOICES + int(seen[turn]), ACTION + chosen]
            logprobs += [np.nan, np.log(chances[turn, seen[turn], chosen])]
            rewards.append(float(chosen == (seen[turn] + turn) % CHOICES))
        row = Row(
            token_ids=array(IDS, ids),
            loss_mask=np.array([0, 1] * TURNS, np.uint8),
            logprobs=np.array(logprobs, np.float32),
            weight=1.0,
            prompt_length=1,
            spans=tuple(TurnSpan(turn, 2 * turn + 1, 2 * turn + 2, True, "stop") for turn in range(TURNS)),
            versions=(),
        )
        return Rollout(
            input_id="row",
            session_id=f"session-{sample}",
            sample=sample,
            status=Status.COMPLETED,
            action=Action.TRAIN,
            why=None,
            payload={},
            result=None,
            error=None,
            rewards=sum(rewards) if self.variant.startswith("rollout") else rewards,
            rows=(row,),
            fidelity=Fidelity(TURNS, TURNS, {}, 1, TURNS, TURNS - 1, 0, 0),
        )

    def update(self, examples: list[Any], step: int) -> None:
        """The loss of importance sampling at the weights that sampled, whose ratio is 1; then Adam."""
        chances, gradient = self.chances(), np.zeros_like(self.logits)
        for example in examples:
            places = zip(example.tokens.tolist(), example.targets.tolist(), strict=True)
            for (before, target), advantage in zip(places, example.advantages.tolist(), strict=True):
                if advantage:
                    turn, seen = divmod(before, CHOICES)
                    gradient[turn, seen] -= advantage * chances[turn, seen]
                    gradient[turn, seen, target - ACTION] += advantage
        first, second = self.moments
        first[:] = 0.9 * first + 0.1 * gradient
        second[:] = 0.999 * second + 0.001 * gradient**2
        self.logits += RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000, help="rollouts of the bias (default: 100000)")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each variant (default: 5)")
    args = parser.parse_args()
    began = time.monotonic()
    apart = bias(args.rollouts)
    steps = {name: [Learner(name, seed).run() for seed in range(args.seeds)] for name in VARIANTS}
    rows = [[name, str(statistics.median(found)), ", ".join(map(str, found))] for name, found in steps.items()]
    print(format_table(["credit", "median", f"steps to {TARGET:.0%} (over {MOST_STEPS}: never)"], rows))
    print(f"bias: at most {apart['largest']:.2f} standard errors of {args.rollouts:,} rollouts, {apart['rms']:.2f} rms")
    figures = {"bias": apart, "task": {"turns": TURNS, "target": TARGET, "most_steps": MOST_STEPS, "steps": steps}}
    seconds = round(time.monotonic() - began, 1)
    write_to(ROOT / "benchmarks" / "results" / "turn_credit.json", {"seconds": seconds, **figures})


if __name__ == "__main__":
    main()
