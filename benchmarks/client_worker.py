"""One client's share of `client.py`: runs in a separate process, with this package or with the peer's.

Reads a job (JSON) from stdin, runs it, writes what it saw (JSON) to stdout. Uses only what both clients have.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from agentcore_rl_toolkit import RolloutClient


def batch(job: dict[str, Any]) -> dict[str, Any]:
    """Run rows as a batch; when each result was in hand, and the CPU it took."""
    client = RolloutClient(**job["client"])
    warm(client, job)
    seen, cpu, begun = [], time.process_time(), time.time()
    for item in client.run_batch(job["rows"], max_concurrent_sessions=job["concurrency"], timeout=300):
        if item.result is not None:
            seen.append([item.result["result_key"], time.time()])
    return {"seen": seen, "cpu": time.process_time() - cpu, "seconds": time.time() - begun}


def warm(client: RolloutClient, job: dict[str, Any]) -> None:
    """One rollout first: imports and connections are not what is measured."""
    for _ in client.run_batch(job["rows"][:1], max_concurrent_sessions=1, timeout=60):
        pass


if __name__ == "__main__":
    json.dump(batch(json.load(sys.stdin)), sys.stdout)
