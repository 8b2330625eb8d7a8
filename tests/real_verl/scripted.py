"""A server client of verl's that says what a row's script tells it to, in the order in which the samples ask."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np
from transformers import AutoTokenizer
from verl.workers.rollout.replica import TokenOutput

END = "<|im_end|>"


class ScriptedClient:
    """`lines` by row; those who start over, or ask when there are none left, get `again`. It travels by pickle."""

    def __init__(self, model: str, lines: dict[str, list[str]], *, experts: bool = False, step: int = 4) -> None:
        self.model, self.lines, self.experts, self.step = model, lines, experts, step
        self.again = "0.5"
        self.asked: list[tuple[str, dict[str, Any]]] = []

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.model)

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        self.asked.append((request_id, dict(sampling_params)))
        prompt = self.tokenizer.decode(prompt_ids)
        waiting = self.lines.get(re.findall(r"row-\w+", prompt)[-1])
        said = waiting.pop(0) if waiting and "start over" not in prompt else self.again
        if said == "engine":
            raise RuntimeError("the server is gone")
        ids = self.tokenizer(said + END, add_special_tokens=False)["input_ids"]
        length = len(prompt_ids) + len(ids) - 1
        experts = np.arange(length * 6).reshape(length, 3, 2) % 8 if self.experts else None
        return TokenOutput(
            token_ids=ids,
            log_probs=[-0.01 * (token % 97 + 1) for token in ids],
            routed_experts=experts,
            stop_reason="completed",
            extra_fields={"global_steps": self.step, "min_global_steps": self.step, "max_global_steps": self.step},
        )
