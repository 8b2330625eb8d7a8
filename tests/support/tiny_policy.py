"""The built-in model as a policy behind the wire of a training session: it samples, and learns by its gradient.

All of its weights are trained, where the service trains an adapter.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from agentcore_rl_toolkit.engine import tiny

from .reply_policy import Sampled, Seen

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TinyWeights:
    """A model at one moment, with Adam's moments."""

    state: State
    first: State
    second: State
    steps: int = 0

    def moved(self, gradient: State, rate: float) -> TinyWeights:
        """Adam, uphill."""
        step, first, second, state = self.steps + 1, {}, {}, dict(self.state)
        for name, slope in gradient.items():
            first[name] = 0.9 * self.first.get(name, 0.0) + 0.1 * slope
            second[name] = 0.95 * self.second.get(name, 0.0) + 0.05 * slope**2
            spread = (second[name] / (1 - 0.95**step)).sqrt() + 1e-8
            state[name] = state[name] + rate * (first[name] / (1 - 0.9**step)) / spread
        return TinyWeights(state, first, second, step)


class TinyPolicy:
    """One model, into which the weights of each request are loaded."""

    scale = 1.0

    def __init__(self) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(str(tiny.path()), dtype=torch.float32)
        self._lock = threading.Lock()
        self._loaded: TinyWeights | None = None

    def new(self) -> TinyWeights:
        return TinyWeights({name: value.detach().clone() for name, value in self._model.state_dict().items()}, {}, {})

    def zero(self) -> State:
        return {}

    def sample(self, weights: TinyWeights, prompt: list[int], params: Mapping[str, Any]) -> list[Sampled]:
        ids = torch.tensor([prompt])
        with self._lock, torch.no_grad():
            model = self._with(weights)
            known = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": min(64, params["max_tokens"])}
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **known)[0].tolist()
            values = self._targets(model, out[:-1], out[1:])[len(prompt) - 1 :].tolist()
        finish = "length" if len(out) - len(prompt) == known["max_new_tokens"] else "stop"
        return [(token, value, finish) for token, value in zip(out[len(prompt) :], values, strict=True)]

    def learn(self, weights: TinyWeights, datum: Seen, gradient: State) -> float:
        """Add a datum's part of the gradient of Σ ratio · advantage; gives its loss."""
        with self._lock:
            model = self._with(weights)
            model.zero_grad()
            ours = self._targets(model, datum.tokens, [int(one) for one in datum.inputs["target_tokens"]])
            advantages, theirs = torch.tensor(datum.inputs["advantages"]), torch.tensor(datum.inputs["logprobs"])
            gain = (torch.exp((ours - theirs) * (advantages != 0)) * advantages).sum()
            gain.backward()
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    gradient[name] = gradient.get(name, 0.0) + parameter.grad.clone()
        return -float(gain)

    def logprobs(self, weights: TinyWeights, datum: Seen) -> list[float]:
        with self._lock, torch.no_grad():
            targets = [int(one) for one in datum.inputs["target_tokens"]]
            values: list[float] = self._targets(self._with(weights), datum.tokens, targets).tolist()
            return values

    def _with(self, weights: TinyWeights) -> Any:
        if self._loaded is not weights:
            self._model.load_state_dict(weights.state)
            self._loaded = weights
        return self._model

    def _targets(self, model: Any, tokens: list[int], targets: list[int]) -> torch.Tensor:
        scores = model(torch.tensor([tokens])).logits[0].float().log_softmax(-1)
        return scores.gather(1, torch.tensor(targets)[:, None])[:, 0]
