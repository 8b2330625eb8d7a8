"""What is left of a rollout whose session died: a result, without the secrets of the agent's own configuration."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from agentcore_rl_toolkit.errors import RuntimeFault
from support.runtime import eventually, local_runtime

AGENT = """
app = AgentCoreRLApp(config=AgentCoreConfig(secret_keys=("vault",)))

@app.rollout_entrypoint
def invoke_agent(payload):
    print("the vault opens with", payload["_rollout"]["vault"], flush=True)
    os._exit(9)
"""


def test_secrets_named_in_the_agents_code_are_not_in_its_lost_results(tmp_path: Path) -> None:
    store = tmp_path / "results"
    with local_runtime(tmp_path / "agent", AGENT) as user:
        settings = {"exp_id": "e", "input_id": "i", "s3_bucket": str(store), "vault": "open-sesame"}
        with contextlib.suppress(RuntimeFault):  # it may end before it has answered
            user.ask(_rollout=settings)
        (path,) = eventually(lambda: list(store.rglob("*.json")))
    document = json.loads(path.read_bytes())
    assert document["error"]["kind"] == "session_lost"
    assert document["payload"]["_rollout"]["vault"] == "***"
    assert "open-sesame" not in json.dumps(document)
