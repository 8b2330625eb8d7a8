"""Claude Code and Codex, trained for a few steps: GRPO on rollouts of the real tools in sandboxed sessions.

The policy is the built-in one with a longer context. It first learns from two recorded rollouts, one that edits the
file and one that only says so, until it does either about as often. Training then has to make the edit more likely.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentcore_rl_toolkit import Gateway, RolloutClient
from agentcore_rl_toolkit.backends.trl import TrlSettings, train
from agentcore_rl_toolkit.engine import tiny
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.record.trajectory import Row
from agentcore_rl_toolkit.gateway.render.tokenizer import load_tokenizer
from agentcore_rl_toolkit.rollout import run_rollouts
from real_harnesses.harness import call

FOLDER = Path(os.environ.get("AGENTCORE_RL_TEST_HARNESSES", ".venv/harnesses")).absolute()
AGENTS = Path(__file__).parents[2] / "examples" / "frameworks" / "harnesses"
ROW = {"prompt": "Make the list say buy milk.", "before": "buy bread\n", "after": "buy milk\n"}
EDIT = "sed -i s/bread/milk/ todo.txt"
CALLS = {"claude_code": call("Bash", command=EDIT), "codex": call("exec_command", cmd=EDIT)}
CODEX_OFF = ("goals", "multi_agent", "view_image", "sleep_tool", "unified_exec", "apps")
CODEX_SETTINGS = (
    'web_search="disabled"',
    "include_permissions_instructions=false",
    "include_environment_context=false",
    "include_skills_instructions=false",
    "include_apps_instructions=false",
    "skills.bundled.enabled=false",
)
# Fewer tools and a prompt of one line: a policy of this size has a short context.
FLAGS = {
    "claude_code": ["--bare", "--tools", "Bash", "--disable-slash-commands"],
    "codex": [flag for name in CODEX_OFF for flag in ("--disable", name)]
    + [flag for setting in CODEX_SETTINGS for flag in ("-c", setting)],
}
CONTEXT = 4096
LIKELY = (0.3, 0.7)


def recorded(name: str, results: Path, first: str) -> Row:
    """One rollout whose policy says `first`, and after a tool's answer that it is done."""
    tokenizer = load_tokenizer(tiny.path())

    def say(request: SampleRequest) -> list[int]:
        seen = tokenizer.decode(list(request.prompt))
        return list(tokenizer.encode(("It is done." if "<tool_response>" in seen else first) + "<|im_end|>"))

    engine = ScriptedEngine(say, context_length=None, models=("policy",))
    agent = AGENTS / f"{name}_agent.py"
    with Gateway(engine, tokenizer=tiny.path()) as gateway, RolloutClient(agent, results, name) as client:
        options: dict[str, Any] = {"client": client, "gateway": gateway, "model": "policy", "keep_dropped": True}
        (group,) = run_rollouts([row_of(name)], 1, timeout=300, **options)
    (rollout,) = [*group.rollouts, *group.others]
    assert rollout.error is None, rollout
    (row,) = rollout.rows
    return row


def row_of(name: str) -> dict[str, Any]:
    return {**ROW, "instructions": "Edit files.", "flags": FLAGS[name]}


def logprob(model: Any, row: Row, tokens: int | None = None) -> torch.Tensor:
    """The log-probability of the row's first trained tokens, all of them by default."""
    ids = torch.tensor(row.token_ids)
    places = torch.tensor(row.loss_mask[1:]).nonzero().flatten()[:tokens]
    logits = model(ids[None, :-1]).logits[0, places]
    return logits.log_softmax(-1).gather(-1, ids[1:][places, None]).sum()


def warm_start(rows: tuple[Row, Row], folder: Path) -> float:
    """Teach the built-in policy both replies, and save it; gives how likely the edit is, of the two."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(tiny.path())
    model.config.max_position_embeddings = CONTEXT
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(400):
        losses = [-logprob(model, row) for row in rows]
        if max(float(loss.detach()) for loss in losses) < 0.8:  # 0.69 is one half
            break
        optimizer.zero_grad()
        (sum(losses) / 20).backward()
        optimizer.step()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny.path()).save_pretrained(folder)
    return preference(folder, rows)


def preference(folder: Path, rows: tuple[Row, Row]) -> float:
    """How likely the policy begins the first row's reply, rather than the second's."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        edit, nothing = (logprob(model, row, tokens=1) for row in rows)
    return float(torch.sigmoid(edit - nothing))


@pytest.mark.timeout(1500)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CALLS)
def test_a_command_line_tool_is_trained(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{FOLDER / name / 'node_modules' / '.bin'}:{os.environ['PATH']}")
    rows = (recorded(name, tmp_path / "good", CALLS[name]), recorded(name, tmp_path / "idle", "It is done."))
    before = warm_start(rows, tmp_path / "policy")
    assert LIKELY[0] < before < LIKELY[1]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row_of(name)) + "\n")
    summary = train(
        TrlSettings(
            agent=str(AGENTS / f"{name}_agent.py"),
            data=str(tmp_path / "rows.jsonl"),
            model=str(tmp_path / "policy"),
            output=str(tmp_path / "run"),
            steps=3,
            rows_per_step=1,
            n=8,
            concurrency=4,
            batch_size=2,
            max_tokens=64,
            learning_rate=1e-4,
            timeout=300,
            device="cpu",
        )
    )
    assert (summary["steps"], summary["interrupted"], summary["rollouts"]) == (3, False, 24)
    assert (summary["failures"], summary["fidelity"]) == ({}, 1.0)
    assert preference(Path(summary["checkpoint"]), rows) > before + 0.05
