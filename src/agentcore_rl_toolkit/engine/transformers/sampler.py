"""Logits in; token ids, and their logprobs under the policy, out.

Logprobs ignore penalties, grammars and cut-offs. They are those of the plain logits or, with `at_temperature`, of the
logits divided by the request's temperature, as trainers compute them.

A sequence draws one number from its own generator for each token, whichever other sequences are in the batch, and takes
the token at that number in the cumulative probabilities. Settings apply in vLLM's order: grammar, bias and minimum,
penalties, temperature, min_p, top_k, top_p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from .sequence import Sequence

GREEDY = 1e-5
"""A lower temperature takes the likeliest token."""


@dataclass
class Draw:
    """The tokens of one step, one per row."""

    ids: Tensor
    """On the device, for the next step."""
    tokens: list[int]
    logprobs: list[float]
    """NaN where the logits were not finite."""
    top: list[dict[int, float] | None]


class Sampler:
    """Samples for one batch, until a sequence joins or leaves."""

    def __init__(
        self, batch: Many[Sequence], vocab_size: int, device: torch.device, *, at_temperature: bool = False
    ) -> None:
        self.batch, self.device, self.vocab_size = batch, device, vocab_size
        settings = [sequence.sampling for sequence in batch]
        temperatures = [1.0 if s.temperature is None else s.temperature for s in settings]
        self._greedy = self._tensor([t < GREEDY for t in temperatures], torch.bool)
        self._temperature = self._tensor([t if t >= GREEDY else 1.0 for t in temperatures], torch.float32)[:, None]
        self._all_greedy = all(t < GREEDY for t in temperatures)
        self._any_greedy = any(t < GREEDY for t in temperatures)
        self._scaled = any(t != 1.0 for t in temperatures)
        self._logprobs_scaled = at_temperature and self._scaled
        cut = [(s.top_k or -1) > 0 or (s.top_p or 1.0) < 1 or (s.min_p or 0.0) > 0 for s in settings]
        self._cut_rows = [i for i, needed in enumerate(cut) if needed and temperatures[i] >= GREEDY]
        chosen = [settings[i] for i in self._cut_rows]
        most = [s.top_k if s.top_k and s.top_k > 0 else vocab_size for s in chosen]
        self._top_k = self._tensor(most, torch.int64)[:, None]
        self._top_p = self._tensor([1.0 if s.top_p is None else s.top_p for s in chosen], torch.float32)[:, None]
        self._min_p = self._tensor([s.min_p or 0.0 for s in chosen], torch.float32)[:, None]
        self._alternatives = max((s.top_logprobs for s in settings), default=0)
        self._edited = [i for i, sequence in enumerate(batch) if _edits(sequence)]

    def __call__(self, logits: Tensor) -> Draw:
        raw = logits.float()
        policy = raw.log_softmax(dim=-1)
        scores = self._edit(raw) if self._edited else policy
        ids = scores.argmax(dim=-1) if self._all_greedy else self._random(scores)
        if self._logprobs_scaled:
            policy = (raw / self._temperature).log_softmax(dim=-1)
        picked = policy.gather(1, ids[:, None]).squeeze(1)
        tokens, logprobs = torch.stack([ids.double(), picked.double()]).tolist()  # one transfer
        top = self._top(policy) if self._alternatives else list[dict[int, float] | None]([None] * len(tokens))
        return Draw(ids, [int(token) for token in tokens], logprobs, top)

    def _random(self, scores: Tensor) -> Tensor:
        scaled = scores / self._temperature if self._scaled or self._cut_rows else scores
        if self._cut_rows:
            scaled[self._cut_rows] = self._cut(scaled[self._cut_rows])
        cumulative = scaled.softmax(dim=-1).double().cumsum(dim=-1)
        # Just below 1, so that the product is below the sum and no impossible token is hit.
        dice = self._tensor([min(s.rng.random(), 1 - 1e-12) for s in self.batch], torch.float64)[:, None]
        drawn = torch.searchsorted(cumulative, dice * cumulative[:, -1:], right=True).squeeze(1)
        drawn = drawn.clamp(max=scores.shape[1] - 1)
        return torch.where(self._greedy, scores.argmax(dim=-1), drawn) if self._any_greedy else drawn

    def _cut(self, scaled: Tensor) -> Tensor:
        ordered, order = scaled.sort(dim=-1, descending=True)
        chances = ordered.softmax(dim=-1)
        ranks = torch.arange(ordered.shape[1], device=self.device)
        keep = (ranks < self._top_k) & (chances >= self._min_p * chances[:, :1])
        chances = ordered.masked_fill(~keep, -math.inf).softmax(dim=-1)
        keep &= chances.cumsum(dim=-1) - chances < self._top_p
        keep[:, 0] = True
        ordered = ordered.masked_fill(~keep, -math.inf)
        return torch.empty_like(scaled).scatter_(1, order, ordered)

    def _edit(self, raw: Tensor) -> Tensor:
        scores = raw.clone()
        for i in self._edited:
            sequence, row = self.batch[i], scores[i]
            s = sequence.sampling
            if sequence.grammar is not None:
                row.masked_fill_(sequence.grammar.forbidden().to(self.device), -math.inf)
            if s.logit_bias:
                places = self._tensor([token for token, _ in s.logit_bias], torch.int64)
                row.index_add_(0, places, self._tensor([bias for _, bias in s.logit_bias], torch.float32))
            if sequence.sampled < (s.min_tokens or 0) and sequence.grammar is None and sequence.stop_ids:
                row[sorted(sequence.stop_ids)] = -math.inf
            if _penalized(sequence):
                self._penalize(sequence, row)
        return scores

    def _penalize(self, sequence: Sequence, row: Tensor) -> None:
        """Repetition counts the prompt too; presence and frequency only count sampled tokens."""
        s, state = sequence.sampling, sequence.penalty_state
        if state is None:
            seen = torch.zeros(self.vocab_size, dtype=torch.bool, device=self.device)
            seen[self._tensor(list(sequence.ids), torch.int64)] = True
            counts = torch.zeros(self.vocab_size, device=self.device)
            sampled = self._tensor(list(sequence.ids[sequence.prompt_length :]), torch.int64)
            counts.index_add_(0, sampled, torch.ones(len(sampled), device=self.device))
            sequence.penalty_state = seen, counts
        elif sequence.sampled:
            state[0][sequence.ids[-1]] = True
            state[1][sequence.ids[-1]] += 1
        seen, counts = sequence.penalty_state
        repetition = s.repetition_penalty or 1.0
        row.copy_(torch.where(seen, torch.where(row > 0, row / repetition, row * repetition), row))
        row.sub_(counts * (s.frequency_penalty or 0.0) + (counts > 0) * (s.presence_penalty or 0.0))

    def _top(self, logprobs: Tensor) -> list[dict[int, float] | None]:
        values, ids = logprobs.topk(min(self._alternatives, logprobs.shape[1]), dim=-1)
        rows = zip(self.batch, ids.tolist(), values.tolist(), strict=True)
        return [
            dict(zip(tokens[:count], chances, strict=False)) if (count := sequence.sampling.top_logprobs) else None
            for sequence, tokens, chances in rows
        ]

    def _tensor(self, values: list[float] | list[int] | list[bool], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def _penalized(sequence: Sequence) -> bool:
    s = sequence.sampling
    return bool(s.presence_penalty or s.frequency_penalty or (s.repetition_penalty or 1.0) != 1.0)


def _edits(sequence: Sequence) -> bool:
    s = sequence.sampling
    return bool(sequence.grammar or s.logit_bias or s.min_tokens) or _penalized(sequence)
