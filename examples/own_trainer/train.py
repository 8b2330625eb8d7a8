"""A trainer of one's own: GRPO on an agent's rollouts, in plain PyTorch.

python train.py rl_app.py rows.jsonl --model tiny --steps 20
"""

import argparse
from statistics import fmean, pstdev
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentcore_rl_toolkit import Gateway, RolloutClient
from agentcore_rl_toolkit.engine import resolve_model
from agentcore_rl_toolkit.engine.transformers import TransformersEngine
from agentcore_rl_toolkit.rollout import UNALTERED, Group, Row, run_rollouts
from agentcore_rl_toolkit.rows import read_rows


def advantages(group: Group) -> list[float]:
    """Each rollout's reward against the others of its row; masked ones are not among them."""
    return [(reward - fmean(group.rewards)) / (pstdev(group.rewards) + 1e-4) for reward in group.rewards]


def loss_of(model: torch.nn.Module, row: Row, advantage: float, clip: float = 0.2) -> torch.Tensor:
    """The clipped objective of a row's trained tokens, by its share of the rollout."""
    ids = torch.tensor(row.token_ids, device=model.device)
    trained = torch.tensor(row.loss_mask[1:], dtype=torch.bool, device=model.device)
    sampler = torch.tensor(row.logprobs[1:], device=model.device)[trained]
    logits = model(ids[None, :-1]).logits[0][trained].float()
    policy = logits.log_softmax(-1).gather(-1, ids[1:][trained][:, None])[:, 0]
    ratio = torch.exp(policy - sampler)
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean() * row.weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agent")
    parser.add_argument("rows")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--output", default="runs/own")
    for name, default in (("steps", 20), ("rows-per-step", 8), ("n", 8), ("max-tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    rows = read_rows(args.rows)[0]
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(args.model))
    model = AutoModelForCausalLM.from_pretrained(resolve_model(args.model), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2.5e-4, weight_decay=0.0)
    engine = TransformersEngine(model, tokenizer=tokenizer, name=args.model)
    sampling = {**UNALTERED, "temperature": 1.0, "max_tokens": args.max_tokens}
    settings: dict[str, Any] = {"enforced": sampling, "max_concurrent_sessions": 16}
    with Gateway(engine, tokenizer=tokenizer) as gateway, RolloutClient(args.agent, args.output, "own") as client:
        for step in range(1, args.steps + 1):
            chosen = [rows[(step * args.rows_per_step + k) % len(rows)] for k in range(args.rows_per_step)]
            groups = list(run_rollouts(chosen, args.n, client=client, gateway=gateway, **settings))
            scored = [(r, a) for g in groups if g.has_variance for r, a in zip(g.trained, advantages(g), strict=True)]
            with engine.updating(version=str(step)):
                for rollout, advantage in scored:
                    for row in rollout.rows:
                        (loss_of(model, row, advantage) / len(scored)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            rewards = [reward for group in groups for reward in group.rewards]
            print(f"step {step}: {len(rewards)} rollouts, mean reward {fmean(rewards or [0.0]):.2f}", flush=True)
    model.save_pretrained(args.output)
    tokenizer.save_pretrained(args.output)


if __name__ == "__main__":
    main()
