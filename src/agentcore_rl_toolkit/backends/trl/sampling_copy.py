"""A copy of the policy that samples while the policy itself is trained.

The engine can't share the trainer's module then: an optimizer step would change weights under a forward pass, and the
trainer's and the engine's passes want different training flags. What is not trained (all but an adapter) is shared.

TRL and accelerate replace the policy's `forward` by functions that hold on to the policy itself, and would compute with
its weights in a copy, too. The copy has the forward of its class.
"""

from __future__ import annotations

import copy

import torch
from torch import nn


class SamplingCopy:
    """`module` samples; `update` brings the trained weights over, while the engine is held."""

    def __init__(self, policy: nn.Module) -> None:
        frozen = {id(parameter): parameter for parameter in policy.parameters() if not parameter.requires_grad}
        self.module: nn.Module = copy.deepcopy(policy, frozen)  # deepcopy shares what is in its memo
        for module in self.module.modules():
            vars(module).pop("forward", None)
        both = zip(policy.parameters(), self.module.parameters(), strict=True)
        self._pairs = [(mine, trained) for trained, mine in both if trained.requires_grad]
        self.module.requires_grad_(False).eval()

    def update(self) -> None:
        with torch.no_grad():
            for mine, trained in self._pairs:
                mine.copy_(trained)
        if self._pairs and self._pairs[0][0].is_cuda:
            torch.cuda.synchronize()  # the engine has its own stream
