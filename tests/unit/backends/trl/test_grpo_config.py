"""Models as a run finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcore_rl_toolkit.backends.trl.backend import TrlSettings
from agentcore_rl_toolkit.backends.trl.grpo_config import load_policy, renders_tools
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
