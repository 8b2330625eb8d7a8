"""TRL's GRPOTrainer, fed with rollouts of agents.

Plugged in through `rollout_func` and a reward function. What these can't carry is added to the batch that TRL makes of
them (`_generate_and_score_completions`, pinned by a test): rows beyond one for each rollout, and the sampler's logprobs
as those the policy's ratio is taken to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from ...errors import ConfigError
from ...gateway.trajectory import Row
from ...rollout import Group
from .convert import Batch, split, to_batch

RunGroups = Callable[[list[dict[str, Any]], int, int], Sequence[Group]]
"""Runs a step's rows: the rows, samples of each, and the step; gives one group for each row, in order."""

_ROW_MEANS = frozenset({"grpo", "sapo"})
"""Losses that average over a row's tokens and then over rows: a rollout's rows share its place."""
_ROW_SUMS = frozenset({"dr_grpo", "luspo"})
"""Losses that add up tokens and divide by the number of rows, which has to be that of rollouts.

All others average over tokens, where every token counts once anyhow.
"""


class AgentGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO on rollouts.

    `rows` are the payloads of the data set, `run_groups` runs them; everything else is TRL's own.
    """

    def __init__(
        self, model: Any, rows: Sequence[dict[str, Any]], run_groups: RunGroups, args: GRPOConfig, **others: Any
    ) -> None:
        self._rows, self._run_groups = rows, run_groups
        self._batch = Batch()
        self._asked: list[int] = []
        self.sampler_held: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Keeps the sampler from sampling while its weights change."""
        self.step_metrics: dict[str, float] = {}
        """Logged with TRL's own, whichever way those are reported."""
        if args.per_device_train_batch_size * (args.steps_per_generation or 1) % args.num_generations:
            raise ConfigError(
                "a group would be split over processes: the rollouts of a step and process are no multiple of "
                f"num_generations={args.num_generations}"
            )
        super().__init__(
            model=model,
            reward_funcs=[agent_reward],
            args=args,
            train_dataset=Dataset.from_list([{"prompt": _title(row), "row": i} for i, row in enumerate(rows)]),
            rollout_func=self._roll_out,
            **others,
        )
        self.remove_callback(PrinterCallback)  # every figure of every step, in the middle of our table

    def sync_sampler(self) -> None:
        """Give vLLM, if it samples, the current weights."""
        if self.use_vllm and self.state.global_step != self._last_loaded_step:
            with self.sampler_held():
                self.vllm_generation.sync_weights()
                self.accelerator.wait_for_everyone()  # one process sends to a server that all of them ask
            self._last_loaded_step: int = self.state.global_step

    def _roll_out(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's hook: one prompt for each slot, in groups."""
        n = self.num_generations
        rows = [self._rows[index] for index in self._asked[::n]]
        groups = self._run_groups(rows, n, self.state.global_step)
        self._batch = to_batch(groups, n, self._tokenizer.pad_token_id, len(rows))
        return self._batch.fields()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._asked = [example["row"] for example in inputs]
        self.sync_sampler()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.temperature == 1.0:  # the sampler's logprobs are those of the plain logits
            output["old_per_token_logps"] = output["sampling_per_token_logps"]
        return self._with_more(output)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.model.training and "loss" in logs:
            logs = logs | self.step_metrics
        super().log(logs, start_time)

    def _with_more(self, output: dict[str, Any]) -> dict[str, Any]:
        """Add the rows that have no slot, and padding so that the step still divides."""
        slots, chunks = len(self._batch.weights), self.args.steps_per_generation
        advantages = output["advantages"]
        count = slots + len(self._batch.more)
        count += -count % chunks
        weights = [1.0] * (slots + len(self._batch.more))
        if self.loss_type in _ROW_MEANS:
            weights = [*self._batch.weights, *(row.weight for _, row in self._batch.more)]
        scale = torch.tensor(weights, device=advantages.device)
        if self.loss_type in _ROW_MEANS | _ROW_SUMS:
            scale = scale * (count / slots)
        of_slot = [*range(slots), *(slot for slot, _ in self._batch.more)]
        if self._batch.more:
            output = self._widened(output, count)
        output["advantages"] = torch.zeros(count, device=advantages.device)
        output["advantages"][: len(of_slot)] = advantages[of_slot] * scale
        mask = output["completion_mask"] * output["tool_mask"]
        output["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        return output

    def _widened(self, output: dict[str, Any], count: int) -> dict[str, Any]:
        """The batch with room for `count` rows, those without a slot in it."""
        more = [split(row) for _, row in self._batch.more]
        prompt = max(output["prompt_ids"].size(1), *(len(ids) for ids, *_ in more))
        completion = max(output["completion_ids"].size(1), *(len(ids) for _, ids, *_ in more))
        padding = self._tokenizer.pad_token_id
        ours: dict[str, list[list[Any]]] = {
            "prompt_ids": [ids for ids, *_ in more],
            "prompt_mask": [[1] * len(ids) for ids, *_ in more],
            "completion_ids": [ids for _, ids, *_ in more],
            "completion_mask": [[1] * len(ids) for _, ids, *_ in more],
            "tool_mask": [mask for *_, mask in more],
            "sampling_per_token_logps": [logprobs for _, _, logprobs, _ in more],
        }
        if self.temperature == 1.0:
            ours["old_per_token_logps"] = ours["sampling_per_token_logps"]
        widened = dict(output)
        for name, added in ours.items():
            if (known := output.get(name)) is not None:
                left, fill = name.startswith("prompt"), padding if name.endswith("_ids") else 0
                width = prompt if left else completion
                widened[name] = _stacked(known, added, count, width, fill, left=left)
        widened["prompt_mask"][len(output["prompt_ids"]) + len(more) :, -1] = 1  # a row that attends to nothing is NaN
        for name in output.keys() - ours.keys() - {"advantages", "num_items_in_batch"}:
            hint = "set beta=0, num_iterations=1 and temperature=1"
            raise ConfigError(f"rollouts of several rows can't be trained with TRL's {name}", hint=hint)
        return widened

    @property
    def more_rows(self) -> list[tuple[int, Row]]:
        """Of the latest step, the rows beyond one for each rollout."""
        return self._batch.more


def agent_reward(completions: list[Any], agent_reward: list[float | None], **_: Any) -> list[float | None]:
    """TRL's reward function: the agent has said it already."""
    return agent_reward


def _stacked(
    known: torch.Tensor, added: list[list[Any]], count: int, width: int, fill: float, *, left: bool
) -> torch.Tensor:
    """`known` and then `added`, as `count` rows of `width`."""
    stacked = known.new_full((count, width), fill)
    rows = known.size(0)
    if left:
        stacked[:rows, width - known.size(1) :] = known
    else:
        stacked[:rows, : known.size(1)] = known
    for place, values in enumerate(added, start=rows):
        row = torch.tensor(values, dtype=known.dtype, device=known.device)
        if left:
            stacked[place, width - len(row) :] = row
        else:
            stacked[place, : len(row)] = row
    return stacked


def _title(row: dict[str, Any]) -> str:
    """What TRL shows of a data row; what the agent is told is the whole of it."""
    prompt = row.get("prompt")
    title = prompt if isinstance(prompt, str) else json.dumps(row, default=repr)[:1000]
    return title.encode(errors="replace").decode()  # half a character has no place in Arrow
