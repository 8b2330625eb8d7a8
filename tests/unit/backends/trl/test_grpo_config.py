"""Models as a run finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.loop.mismatch import Truncation
from agentcore_rl_toolkit.backends.trl.backend import TrlSettings
from agentcore_rl_toolkit.backends.trl.grpo_config import load_policy, loss_truncation, renders_tools, trl_config
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.errors import ConfigError

PLAIN = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def test_a_template_without_tools_is_found_out(tmp_path: Path):
    model, tokenizer = load_policy(TrlSettings(model="tiny", device="cpu"))
    assert renders_tools(tokenizer)
    assert model.config.vocab_size >= len(tokenizer)
    template = tmp_path / "plain.jinja"
    template.write_text(PLAIN)
    _, tokenizer = load_policy(TrlSettings(model=str(tiny.path()), device="cpu", chat_template=str(template)))
    assert tokenizer.chat_template == PLAIN
    assert not renders_tools(tokenizer)
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert not renders_tools(tokenizer)


def test_a_model_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match="does not contain a model: found nothing"):
        load_policy(TrlSettings(model=str(tmp_path), device="cpu"))


def test_asynchronous_runs_truncate_the_ratio_to_the_sampler() -> None:
    def config(**given: Any) -> Any:
        return trl_config(TrlSettings(device="cpu", **given))

    assert (config().loss_type, config().delta) == ("dapo", None)
    assert config(loss="cispo").epsilon_high == 2.0  # TRL's 0.2 would be the weight of nearly every token
    for given, loss, bound in (({}, "cispo", 2.0), ({"options": {"epsilon_high": 5.0}}, "cispo", 5.0)):
        found = config(async_steps=1, **given)
        assert (found.loss_type, loss_truncation(found)) == (loss, Truncation.symmetric(0.0, bound))
    found = config(async_steps=1, loss="grpo")
    assert (found.loss_type, loss_truncation(found)) == ("grpo", Truncation(most=1.2, most_bad=2.0, least_bad=0.8))
    found = config(async_steps=1, loss="dapo", options={"epsilon": 0.3, "epsilon_high": 0.5, "delta": 3.0})
    assert loss_truncation(found) == Truncation(most=1.5, most_bad=3.0, least_bad=0.7)
    for loss in ("sapo", "vespo"):
        assert loss_truncation(config(async_steps=1, loss=loss)) == Truncation()
    by_row = config(async_steps=1, loss="grpo", options={"importance_sampling_level": "sequence"})
    assert (by_row.delta, loss_truncation(by_row)) == (2.0, None)
    with pytest.raises(ConfigError, match="num_iterations=2 can't be used with async_steps"):
        config(async_steps=1, options={"num_iterations": 2})
