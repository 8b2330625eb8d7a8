"""Groups of rollouts through TRL: a whole step of its trainer on a model of a few thousand weights."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig

from agentcore_rl_toolkit.backends.trl.teacher import Distillation
from agentcore_rl_toolkit.backends.trl.trainer import AgentGRPOTrainer
from agentcore_rl_toolkit.rollout import Group
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from support.backends import Seen
from support.tokenizers import PLAIN_TEMPLATE, make_tokenizer

PASSES_ON: frozenset[str] = frozenset({"several rows", "logprobs"})


def seen(groups: Sequence[Group], n: int, credit: TurnCredit | None = None) -> list[Seen]:
    """What reaches TRL's loss."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = stepped(groups, Path(folder), n=n, loss_type="dapo", credit=credit)
    found = []
    for prompt, completion, mask, logprobs, advantage in trainer.seen():
        places = tuple(len(prompt) + i for i, bit in enumerate(mask) if bit)
        kept = tuple(logprobs[i] for i, bit in enumerate(mask) if bit)
        if places:
            by_token = tuple(advantage[i] for i, bit in enumerate(mask) if bit) if credit else ()
            of_rollout = 0.0 if credit else advantage
            found.append(Seen((*prompt, *completion), places, kept, of_rollout, by_token))
    return found


LIMIT = 32  # TRL's max_completion_length


@cache
def tokenizer() -> Any:
    return make_tokenizer(template=PLAIN_TEMPLATE)


def make_model() -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer()),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    return Qwen3ForCausalLM(config)


class Watched(AgentGRPOTrainer):
    """Keeps every batch that reaches the loss, and the gradient of the step."""

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self.batches: list[dict[str, Any]] = []
        self.gradient: dict[str, torch.Tensor] = {}
        self.logged: list[dict[str, Any]] = []
        self.ratios: dict[tuple[str, int], Any] = {}
        self.add_ratios = self.ratios.update

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **others: Any) -> Any:
        self.batches.append(dict(inputs))
        return super().compute_loss(model, inputs, *args, **others)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.logged.append(self.state.log_history[-1])

    def column(self, name: str) -> list[tuple[list[int], torch.Tensor]]:
        """What all batches have under a name, each row's next to its completion."""
        found = []
        for batch in self.batches:
            for i, mask in enumerate(batch["completion_mask"].bool()):
                found.append((batch["completion_ids"][i][mask].tolist(), batch[name][i][mask]))
        return found

    def seen(self) -> list[tuple[Any, ...]]:
        """The rows of all batches without padding: prompt, completion, mask, logprobs, advantage."""
        rows = []
        for batch in self.batches:
            for i, advantage in enumerate(batch["advantages"].tolist()):
                prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()].tolist()
                known = batch["completion_mask"][i].bool()
                completion = [batch[name][i][known].tolist() for name in ("completion_ids", "tool_mask")]
                logprobs = batch["sampling_per_token_logps"][i][known].tolist()
                rows.append((prompt, *completion, [round(value, 4) for value in logprobs], advantage))
        return sorted(rows, key=str)


def stepped(
    groups: Sequence[Group],
    tmp_path: Path,
    *,
    n: int = 3,
    batch: int | None = None,
    steps: int = 1,
    runs: int | None = None,
    kind: type[Watched] = Watched,
    credit: TurnCredit | None = None,
    distillation: Distillation | None = None,
    **config: Any,
) -> Watched:
    """A trainer after a step on these groups; `runs` says how often they are run, if not for each step.

    In one of several processes, its share of them.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    slots = len(groups) * n // processes
    batch = batch or slots
    args = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=batch,
        steps_per_generation=slots // batch,
        gradient_accumulation_steps=slots // batch,
        num_generations=n,
        max_steps=steps,
        max_completion_length=LIMIT,
        **{
            "learning_rate": 1.0,
            "lr_scheduler_type": "constant",
            "optim": "sgd",
            "weight_decay": 0.0,
            "max_grad_norm": 1e9,
            "loss_type": "grpo",
            "beta": 0.0,
            "temperature": 1.0,
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": [],
            "save_strategy": "no",
            "logging_steps": 1,
            "disable_tqdm": True,
            **config,
        },
    )
    asked: list[tuple[list[int], int, int]] = []

    def run_groups(rows: list[dict[str, Any]], n: int, step: int) -> list[Group]:
        asked.append(([row["place"] for row in rows], n, step))
        return [groups[row["place"]] for row in rows]

    rows = [{"prompt": f"row {place}", "place": place} for place in range(len(groups))]
    model = make_model()
    if args.beta:  # TRL loads the reference from where the model is
        model.save_pretrained(tmp_path / "model")
        model.config._name_or_path = str(tmp_path / "model")
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    taught = {"credit": credit, "distillation": distillation}
    trainer = kind(model, rows, run_groups, args, processing_class=tokenizer(), **taught)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    share = len(groups) // processes
    assert processes > 1 or [(sorted(places), n, step) for places, n, step in asked] == [
        (list(range(share)), n, step) for step in range(steps if runs is None else runs)
    ]
    trainer.gradient = {name: before[name] - value.detach() for name, value in model.named_parameters()}
    return trainer


def trainer_of(model: Any, folder: Path, *, bf16: bool = False, peft_config: Any = None) -> AgentGRPOTrainer:
    """A trainer that has done nothing yet."""
    args = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=2, num_generations=2, max_steps=1, use_cpu=True, bf16=bf16,
        report_to=[],
    )  # fmt: skip
    rows = [{"prompt": "row"}]
    return AgentGRPOTrainer(model, rows, lambda *asked: [], args, processing_class=tokenizer(), peft_config=peft_config)
