"""Runs the echo agent end to end on this machine: no AWS account, no network but loopback.

A local runtime starts the agent in sandboxed sessions; it gets a production request and five rollouts (one of them
broken on purpose), and what landed in the store is shown.
"""

import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit import RolloutClient, open_store
from agentcore_rl_toolkit.agent.result import stored_results
from agentcore_rl_toolkit.cli.rollouts.results import results_table
from agentcore_rl_toolkit.runtime.local import LocalRuntime

AGENT = Path(__file__).parent / "rl_app.py"
ROWS: list[dict[str, Any]] = [
    {"prompt": "hello", "answer": "hello"},
    {"prompt": "hello", "answer": "goodbye"},
    {"prompt": "2 + 2 = 4"},
    {"prompt": "Grüße, 世界", "answer": "Grüße, 世界"},
    {"note": "this row has no prompt, so the agent fails"},
]


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo").resolve()
    exp_id = time.strftime("echo-%Y%m%d-%H%M%S")

    print("1. a production request, in a sandboxed session: the value comes back in the response")
    with LocalRuntime(AGENT) as runtime:
        session_id = str(uuid.uuid4())
        print("   →", runtime.invoke(session_id, b'{"prompt": "are you there?"}').decode())
        held = len(runtime.protections)
        print(f"   → {held} of 11 protections hold on this machine (agentcore-rl runtime check)")

    print(f"2. {len(ROWS)} rollouts, a session each; every one leaves exactly one result")
    with RolloutClient(AGENT, root, exp_id) as client:
        items = list(client.run_batch(ROWS, max_concurrent_sessions=5, timeout=60))
    completed = sum(item.success for item in items)

    print(f"3. the results, in {root}\n")
    store = open_store(str(root))
    print(results_table(sorted(stored_results(store, f"{exp_id}/"), key=lambda found: found[0].result_key)))
    print(f"\n{completed} completed and {len(items) - completed} failed, of {len(ROWS)}; the failed one on purpose.")
    command = os.path.relpath(Path(sys.executable).parent / "agentcore-rl")
    print(f"See them again with: {command} results {os.path.relpath(root)} --exp-id {exp_id}")
    return 0 if (len(items), completed) == (len(ROWS), len(ROWS) - 1) else 1


if __name__ == "__main__":
    sys.exit(main())
