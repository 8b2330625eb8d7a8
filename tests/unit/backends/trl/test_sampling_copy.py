"""The copy that samples while the policy is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch

from agentcore_rl_toolkit.backends.trl.sampling_copy import SamplingCopy
from support.backends.trl import make_model, trainer_of


def test_it_keeps_its_weights_until_it_is_updated() -> None:
    policy = make_model().train()
    copy = SamplingCopy(policy)
    before = [parameter.clone() for parameter in copy.module.parameters()]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    assert all(map(torch.equal, copy.module.parameters(), before))
    copy.update()
    assert all(map(torch.equal, copy.module.parameters(), policy.parameters()))
    assert policy.training
    assert not any(module.training for module in copy.module.modules())
    assert not any(parameter.requires_grad for parameter in copy.module.parameters())
    assert all(parameter.requires_grad for parameter in policy.parameters())


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
def test_what_it_computes_is_its_own_although_trl_replaces_the_policys_forward(
    tmp_path: Path, rank: int, bf16: bool
) -> None:
    lora = pytest.importorskip("peft").LoraConfig(r=rank, target_modules="all-linear") if rank else None
    trainer = trainer_of(make_model(), tmp_path, bf16=bf16, peft_config=lora)
    policy = trainer.accelerator.unwrap_model(trainer.model)
    copy = SamplingCopy(policy)

    def logits(module: Any) -> torch.Tensor:
        cast = torch.autocast("cpu", torch.bfloat16, enabled=bf16)
        with torch.no_grad(), cast:
            return module(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits.float()

    before = logits(policy)
    assert torch.equal(logits(copy.module), before)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * parameter.requires_grad)
    assert not torch.allclose(logits(policy), before, atol=0.1)
    assert torch.equal(logits(copy.module), before)
    copy.update()
    assert torch.equal(logits(copy.module), logits(policy))


def test_it_shares_what_is_not_trained() -> None:
    peft = pytest.importorskip("peft")
    policy = peft.get_peft_model(make_model(), peft.LoraConfig(r=2, target_modules="all-linear"))
    copy = SamplingCopy(policy)
    shared = {parameter.data_ptr() for parameter in policy.parameters()}
    own = {name for name, one in copy.module.named_parameters() if one.data_ptr() not in shared}
    assert own == {name for name, one in policy.named_parameters() if one.requires_grad}
    assert own
