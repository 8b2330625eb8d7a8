"""A task that a policy of three replies can learn: `four` is right, and the agent breaks at `?`."""

from __future__ import annotations

import json
from pathlib import Path

from support.agent import ASKING
from support.tokenizers import PLAIN_TEMPLATE, make_tokenizer

_AGENT = (
    ASKING
    + """
@app.rollout_entrypoint
def invoke_agent(payload):
    said = ask(payload)
    if said == payload.get("fails"):
        raise ValueError("broken on purpose")
    return {"rewards": 1.0 if said == payload["answer"] else 0.0, "response": said}
"""
)


def write_task(folder: Path) -> Path:
    """An agent, a tokenizer, five rows and a held-out one."""
    make_tokenizer(template=PLAIN_TEMPLATE).save_pretrained(folder / "tokenizer")
    (folder / "agent").mkdir()
    (folder / "agent" / "rl_app.py").write_text(_AGENT)
    rows = [json.dumps({"prompt": f"row {n}", "answer": "four", "fails": "?"}) for n in range(5)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    (folder / "held_out.jsonl").write_text(json.dumps({"prompt": "another", "answer": "four"}) + "\n")
    return folder


def task_replies() -> list[list[int]]:
    """What the policy can say: `four`, `is` and `?`."""
    tokenizer = make_tokenizer(template=PLAIN_TEMPLATE)
    return [[*tokenizer.encode(said), tokenizer.eos_token_id] for said in ("four", "is", "?")]
