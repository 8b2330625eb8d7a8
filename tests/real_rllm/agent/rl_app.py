"""A small agent: it asks the policy once, and is rewarded as its row says. A row may also make it fail, or wait."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from typing import Any

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()


@app.rollout_entrypoint
def solve(payload: dict[str, Any]) -> dict[str, Any]:
    if "fail" in payload:
        raise ValueError(payload["fail"])
    said = _ask(payload["_rollout"], payload["prompt"])
    time.sleep(payload.get("seconds", 0))
    got = {name: value for name, value in payload.items() if name != "_rollout"}
    got |= {name: os.environ.get(name) for name in payload.get("variables", ())}
    return {"rewards": payload.get("rewards", [float(len(said) % 2)]), "metrics": {"letters": len(said)}, "got": got}


def _ask(rollout: dict[str, Any], prompt: str) -> str:
    body = {"model": rollout["model_id"], "messages": [{"role": "user", "content": prompt}]}
    request = urllib.request.Request(
        f"{rollout['base_url']}/chat/completions",
        json.dumps(body | {"max_tokens": 8}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


if __name__ == "__main__":
    app.run()
