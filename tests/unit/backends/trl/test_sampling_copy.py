"""The copy that samples while the policy is trained."""

from __future__ import annotations

import pytest

pytest.importorskip("trl")

import torch

from agentcore_rl_toolkit.backends.trl.sampling_copy import SamplingCopy
from support.backends.trl import make_model


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


def test_it_shares_what_is_not_trained() -> None:
    peft = pytest.importorskip("peft")
    policy = peft.get_peft_model(make_model(), peft.LoraConfig(r=2, target_modules="all-linear"))
    copy = SamplingCopy(policy)
    shared = {parameter.data_ptr() for parameter in policy.parameters()}
    own = {name for name, one in copy.module.named_parameters() if one.data_ptr() not in shared}
    assert own == {name for name, one in policy.named_parameters() if one.requires_grad}
    assert own
