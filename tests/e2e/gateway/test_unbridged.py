"""A conversation that goes on while its row does not: said at the start, counted with its reason, and shown."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.tokenizers import PLAIN_TEMPLATE, REWRITING_TEMPLATE, make_tokenizer

FIRST = [{"role": "user", "content": "what is two plus two?"}]
MORE = {"role": "user", "content": "the answer again?"}


def talk(running: Gateway, session_id: str, turns: int = 3) -> dict[str, Any]:
    """A session of some turns; gives its fidelity as trainers read it."""
    session = running.open_session(session_id=session_id)
    messages = list(FIRST)
    for _ in range(turns):
        answer = httpx.post(f"{session['base_url']}/chat/completions", json={"messages": messages}, timeout=30)
        messages += [answer.json()["choices"][0]["message"], MORE]
    headers = {"Authorization": f"Bearer {running.admin_key}"}
    read = httpx.get(f"{running.url}/sessions/{session_id}/trajectories", headers=headers, timeout=30)
    found: dict[str, Any] = read.json()["fidelity"]
    return found


def serving(template: str, **settings: Any) -> Gateway:
    tokenizer = make_tokenizer("/models/checkpoint-7", template)
    said = tokenizer.encode("four<|im_end|>", add_special_tokens=False)
    return Gateway(ScriptedEngine(lambda request: said), tokenizer=tokenizer, **settings)


def test_why_a_row_ended_is_counted_said_and_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO), serving(REWRITING_TEMPLATE, log=tmp_path) as running:
        assert "does not allow exact tokens for text: the chat template writes earlier" in caplog.text
        known = talk(running, "split")
        talk(running, "again")
        headers = {"Authorization": f"Bearer {running.admin_key}"}
        counted = httpx.get(f"{running.url}/metrics", headers=headers, timeout=30).text
    assert (known["rows"], known["renders"], known["unbridged"]) == (3, 2, {"template_rewrites_history": 2})
    assert "agentcore_rl_gateway_unbridged_template_rewrites_history_total 4" in counted
    warned = [text for text in caplog.messages if "rows instead of" in text]
    assert len(warned) == 1  # of the first session only
    assert warned[0].startswith("session split folds into 3 rows instead of 1: 2 turns: the chat ")
    assert main(["show", str(tmp_path), "--rollout", "split"]) == 0
    out, err = capsys.readouterr()
    assert out.count("not bridged: template_rewrites_history") == 2
    assert "rendered from scratch: 2 template_rewrites_history" in err
    assert main(["show", str(tmp_path)]) == 0
    listed = {line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines()}
    assert listed["session"] == "unbridged"
    assert listed["split"] == "2"


def test_a_conversation_that_branches_by_itself_is_no_ones_fault(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving(PLAIN_TEMPLATE) as running:
        assert "bridges text, tools" in caplog.text
        assert talk(running, "one")["unbridged"] == {}
        session = running.open_session(session_id="two")
        for question in ("one", "two"):
            asked = {"messages": [{"role": "user", "content": question}]}
            httpx.post(f"{session['base_url']}/chat/completions", json=asked, timeout=30).raise_for_status()
        known = running.trajectories("two").fidelity
    assert (known.rows, known.unbridged, known.split) == (2, {"changed_history": 1}, {})
    assert "rows, but its conversation has" not in caplog.text
