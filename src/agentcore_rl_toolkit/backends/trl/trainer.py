"""TRL's GRPOTrainer on rollouts of agents, through its `rollout_func` and a reward function.

These two hooks can't carry everything. The trainer therefore completes the batch that TRL builds from them
(`_generate_and_score_completions`, pinned by a test): it adds the rows beyond one per rollout, and makes the sampler's
logprobs the denominator of the policy's ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import use_adapter

from ...errors import ConfigError
from ...rollout import Group
from ...rollout.rollout import split_row
from ...rollout.run_folder.ratio_files import LogRatios
from ...rollout.signal.credit import Floats, TurnCredit
from ...rows import row_title
from ..loop.mismatch import Mismatch, Truncation
from .convert import TrlBatch, to_batch
from .grpo_config import MICRO_BATCH_MEANS, ROW_MEANS, ROW_SUMS, by_token, check_config
from .teacher import Distillation

_RECOMPUTED = frozenset({"old_per_token_logps", "ref_per_token_logps"})
"""Logprobs that TRL computes for the rows in slots, and we for the others: of the current policy and the reference."""

_PLACE = "place_in_batch"
"""Says which row of the batch a row is, after TRL has shuffled them."""

RunGroups = Callable[[list[dict[str, Any]], int, int], Sequence[Group]]
"""Runs a step's rows, given the rows, the samples per row and the step; returns one group per row, in order."""


class AgentGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPO on rollouts.

    `rows` are the payloads of the dataset, and `run_groups` runs them; everything else is TRL's own.
    """

    def __init__(
        self,
        model: Any,
        rows: Sequence[dict[str, Any]],
        run_groups: RunGroups,
        args: GRPOConfig,
        *,
        credit: TurnCredit | None = None,
        distillation: Distillation | None = None,
        **others: Any,
    ) -> None:
        self._rows, self._run_groups, self._credit = rows, run_groups, credit
        self._distillation = distillation
        self._gaps: list[Floats] = []
        """Of every row of the batch, how far the teacher is from the policy at each token."""
        self._batch = TrlBatch()
        self._asked: list[int] = []
        self.sampler_held: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Stops the sampler while its weights change."""
        self.step_metrics: dict[str, float] = {}
        """Logged together with TRL's own metrics."""
        self.add_advantages: Callable[[dict[str, float]], None] = lambda known: None
        """Called with the advantages of a step's rollouts, by session."""
        self.add_ratios: Callable[[LogRatios], None] = lambda ratios: None
        """Called with how the policy's logprobs differ from the sampler's, before the first update of a step."""
        self._row_names: list[tuple[str, int] | None] = []
        self._log_ratios: dict[tuple[str, int], Any] = {}
        self.judge: Callable[[int, dict[str, float]], dict[str, float]] = lambda step, metrics: {}
        """Called with the metrics of a finished step; returns further metrics."""
        self._mismatch, self._is_fresh = Mismatch(), False
        self._micro_batch_scale: float | None = None
        self._passed: tuple[torch.Tensor, torch.Tensor | None] | None = None
        """Logprobs and entropies of the latest pass of a loss."""
        self.truncation: Truncation | None = None
        """Log how the policy differs from the sampler, and the share of tokens whose ratio this truncates."""
        self._ratios: list[torch.Tensor] = []
        if args.per_device_train_batch_size * (args.steps_per_generation or 1) % args.num_generations:
            raise ConfigError(
                "a group would be split over processes: the rollouts of a step and process must be a multiple of "
                f"num_generations={args.num_generations}"
            )
        check_config(args, by_token(credit, distillation))
        self.at_temperature = args.temperature == 1.0
        """Whether the sampler divides logits by the temperature before it takes logprobs, as TRL does."""
        super().__init__(
            model=model,
            reward_funcs=[agent_reward],
            args=args,
            train_dataset=Dataset.from_list([{"prompt": row_title(row), "row": i} for i, row in enumerate(rows)]),
            rollout_func=self._roll_out,
            **others,
        )
        self.remove_callback(PrinterCallback)  # it would print into our table

    def sync_sampler(self) -> None:
        """Send vLLM, if it samples, the current weights."""
        if self.use_vllm and self.state.global_step != self._last_loaded_step:
            with self.sampler_held():
                self.vllm_generation.sync_weights()
                self.accelerator.wait_for_everyone()  # one process sends, all processes sample
            self._last_loaded_step: int = self.state.global_step

    def _roll_out(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's hook; it passes one prompt per slot, in groups."""
        n = self.num_generations
        rows = [self._rows[index] for index in self._asked[::n]]
        groups = self._run_groups(rows, n, self.state.global_step)
        self._batch = to_batch(groups, n, self._tokenizer.pad_token_id, len(rows), self._credit)
        if self._distillation is not None:
            self._gaps = self._distillation.compare(self._batch.rows())
            sums = gather_object([(self._distillation.kl, self._distillation.tokens)])
            kl = sum(kl for kl, _ in sums) / max(1, sum(tokens for _, tokens in sums))
            self.step_metrics = self.step_metrics | {"teacher/kl": kl}
        return self._batch.fields()

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._asked = [example["row"] for example in inputs]
        self.sync_sampler()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.at_temperature:
            output["old_per_token_logps"] = output["sampling_per_token_logps"]
        self._is_fresh, self._row_names, self._micro_batch_scale = True, self._batch.row_names(), None
        output = self._complete_batch(output)
        rows = output["completion_ids"]
        output[_PLACE] = torch.arange(len(rows), device=rows.device)  # TRL shuffles rows
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **others: Any) -> Any:
        passed = super()._get_per_token_logps_and_entropies(*args, **others)
        self._passed = passed[:2]
        return passed

    def _scale_of_micro_batches(self) -> float:
        """What leaves the micro-batches without a trained token out of TRL's mean over all of them."""
        if self._micro_batch_scale is None:
            batches = self._buffered_inputs  # a step's micro-batches, after TRL has shuffled their rows
            filled = sum(bool((batch["completion_mask"] * batch["tool_mask"]).any()) for batch in batches)
            counts = torch.tensor([[len(batches), filled]], device=self.accelerator.device)
            every, trained = self.accelerator.gather(counts).sum(0).tolist()
            self._micro_batch_scale = every / max(1, trained)
        return self._micro_batch_scale

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        """TRL's loss. Until the weights change, its logprobs are those that the sampler should have had."""
        loss = super()._compute_loss(model, inputs)
        if self.loss_type in MICRO_BATCH_MEANS:
            loss = loss * self._scale_of_micro_batches()
        if self._is_fresh and self._passed is not None:
            mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
            logps, entropies = self._passed
            sides = (inputs["sampling_per_token_logps"], logps, entropies)
            taken: list[Any] = [None if one is None else one.detach()[mask].float().cpu().numpy() for one in sides]
            self._mismatch.add(*taken)
            self._keep_ratios(inputs, mask, taken[1] - taken[0])
            if self.truncation is not None:
                ratios = (logps - inputs["old_per_token_logps"]).detach()[mask].exp().double()
                known = inputs["advantages"]
                of_token = (known if known.dim() == 2 else known[:, None]).expand(mask.shape)[mask]
                cut = self.truncation.applies(ratios, of_token).sum()
                self._ratios.append(torch.stack([ratios.sum(), cut.to(ratios), ratios.new_tensor(len(ratios))]))
        self._passed = None
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if self.model.training and "loss" in logs:
            parts = gather_object([self._mismatch]) if self.accelerator.num_processes > 1 else [self._mismatch]
            logs = logs | self.step_metrics | Mismatch.merged(parts).metrics() | self._ratio_metrics()
            logs |= self.judge(self.state.global_step, logs)
            self.add_ratios(self._log_ratios)
            self._mismatch, self._is_fresh, self._log_ratios = Mismatch(), False, {}
        super().log(logs, start_time)

    def _keep_ratios(self, inputs: dict[str, Any], mask: torch.Tensor, ratios: Any) -> None:
        """Split the ratios of a batch's trained tokens by row."""
        if not self.at_temperature:
            return
        ends = mask.sum(1).cumsum(0).tolist()
        for start, end, place in zip([0, *ends], ends, inputs[_PLACE].tolist(), strict=False):
            name = self._row_names[place] if place < len(self._row_names) else None
            if name is not None:
                self._log_ratios[name] = ratios[start:end].astype("float16")

    def _ratio_metrics(self) -> dict[str, float]:
        """The mean ratio of the policy to the sampler since the last log, and the share of truncated ones."""
        if not self._ratios:
            return {}
        total, cut, count = self.accelerator.reduce(torch.stack(self._ratios).sum(0), reduction="sum").tolist()
        self._ratios.clear()
        return {"off_policy/ratio": total / max(count, 1), "off_policy/truncated": cut / max(count, 1)}

    def _complete_batch(self, output: dict[str, Any]) -> dict[str, Any]:
        """Add the rows that have no slot, and padding rows, so that the step divides equally in every process."""
        slots, more = len(self._batch.weights), self._batch.more
        count, trained = self._agree_on_size(slots + len(more), self._batch.trained)
        advantages = output["advantages"]
        of_slot = [*range(slots), *(slot for slot, _ in more)]
        by_row = self._by_token(advantages, of_slot)
        if by_row is None:
            self.add_advantages({session: float(advantages[slot]) for slot, session in self._batch.sessions.items()})
        else:
            self.add_advantages(self._batch.mean_over_tokens(by_row))
        weights = [1.0] * (slots + len(more))
        if self.loss_type in ROW_MEANS:
            weights = [*self._batch.weights, *(row.weight for _, row in more)]
        scale = torch.tensor(weights, device=advantages.device)
        if self.loss_type in ROW_MEANS | ROW_SUMS:
            scale = scale * (count * self.accelerator.num_processes / max(trained, 1))  # divide by rollouts, not rows
        if count > slots:
            output = self._extended(output, count)
        if by_row is None:
            output["advantages"] = torch.zeros(count, device=advantages.device)
            output["advantages"][: len(of_slot)] = advantages[of_slot] * scale
        else:
            output["advantages"] = torch.zeros(count, output["completion_ids"].size(1), device=advantages.device)
            for place, (values, factor) in enumerate(zip(by_row, scale, strict=True)):
                output["advantages"][place, : len(values)] = torch.as_tensor(values, device=scale.device) * factor
        mask = output["completion_mask"] * output["tool_mask"]
        output["num_items_in_batch"] = self.accelerator.gather(mask.sum()).sum()
        return output

    def _by_token(self, advantages: torch.Tensor, of_slot: list[int]) -> list[Floats] | None:
        """The advantages of every row's tokens, if they differ within a row; `of_slot` are the slots of the rows."""
        if self._credit is None and self._distillation is None:
            return None
        if self._credit is not None:
            by_reward = self._batch.row_advantages()
        else:
            by_reward = self._batch.spread(advantages[of_slot].tolist())
        return by_reward if self._distillation is None else self._distillation.advantages(by_reward, self._gaps)

    def _agree_on_size(self, rows: int, trained: int) -> tuple[int, int]:
        """The number of rows in every process, and of trained rollouts in all processes together."""
        figures = torch.tensor([[rows, trained]], device=self.accelerator.device)
        every = self.accelerator.gather(figures)
        count = int(every[:, 0].max())
        return count + -count % self.args.steps_per_generation, int(every[:, 1].sum())

    def _extended(self, output: dict[str, Any], count: int) -> dict[str, Any]:
        """The batch extended to `count` rows, which include the rows without a slot."""
        more = [split_row(row) for _, row in self._batch.more]
        slots, padding = output["prompt_ids"].size(0), self._tokenizer.pad_token_id
        prompt = max([output["prompt_ids"].size(1), *(len(ids) for ids, *_ in more)])
        completion = max([output["completion_ids"].size(1), *(len(ids) for _, ids, *_ in more)])
        ours: dict[str, list[list[Any]]] = {
            "prompt_ids": [ids for ids, *_ in more],
            "prompt_mask": [[1] * len(ids) for ids, *_ in more],
            "completion_ids": [ids for _, ids, *_ in more],
            "completion_mask": [[1] * len(ids) for _, ids, *_ in more],
            "tool_mask": [mask for *_, mask in more],
            "sampling_per_token_logps": [logprobs for _, _, logprobs, _ in more],
        }
        if self.at_temperature:
            ours["old_per_token_logps"] = ours["sampling_per_token_logps"]
        extended = dict(output)
        for name in output.keys() & (ours.keys() | _RECOMPUTED):
            left, fill = name.startswith("prompt"), padding if name.endswith("_ids") else 0
            width = prompt if left else completion
            extended[name] = _stack(output[name], ours.get(name, []), count, width, fill, left=left)
        extended["prompt_mask"][slots + len(more) :, -1] = 1  # a row that attends to nothing is NaN
        for name in sorted(output.keys() & _RECOMPUTED - ours.keys()):
            extended[name][slots:, :] = self._score_rows(extended, slots, reference=name.startswith("ref"))
        for name in output.keys() - ours.keys() - _RECOMPUTED - {"advantages", "num_items_in_batch"}:
            raise ConfigError(f"rollouts of several rows can't be trained with TRL's {name}")
        return extended

    def _score_rows(self, batch: dict[str, Any], start: int, *, reference: bool) -> torch.Tensor:
        """Logprobs of the rows from `start` on, under the policy or the reference, computed as TRL does for slots."""
        model, context = self.model, nullcontext()
        if reference and self.ref_model is not None:
            model = self.ref_model
        elif reference:
            policy = self.accelerator.unwrap_model(self.model)
            context = use_adapter(policy, adapter_name="ref" if "ref" in policy.peft_config else None)
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)[start:]
        attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)[start:]
        with torch.no_grad(), context:
            logps, *_ = self._get_per_token_logps_and_entropies(
                model, ids, attention, batch["completion_ids"].size(1), batch_size=self.args.per_device_train_batch_size
            )
        return cast(torch.Tensor, logps)


def agent_reward(completions: list[Any], agent_reward: list[float | None], **_: Any) -> list[float | None]:
    """TRL's reward function: the rollout already has its reward."""
    return agent_reward


def _stack(
    known: torch.Tensor, added: list[list[Any]], count: int, width: int, fill: float, *, left: bool
) -> torch.Tensor:
    """Stack `known` and then `added` into `count` rows of `width`, padded on the left or on the right."""
    stack = known.new_full((count, width), fill)
    for place, row in enumerate([*known, *(known.new_tensor(values) for values in added)]):
        start = width - len(row) if left else 0
        stack[place, start : start + len(row)] = row
    return stack
