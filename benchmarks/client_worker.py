"""One client's share of `client.py`: runs in a separate process, with this package or with the peer's.

Reads a job (JSON) from stdin, runs it, writes what it saw (JSON) to stdout. Uses only what both clients have.
"""

from __future__ import annotations

import asyncio
import json
import resource
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


def in_flight(job: dict[str, Any]) -> dict[str, Any]:
    """Start rollouts that never end; the process's memory after each thousand."""

    async def run() -> list[list[float]]:
        client = RolloutClient(**job["client"])
        kept, sizes = [], []
        for n in range(job["count"] + 1):
            if n % job["every"] == 0:
                sizes.append([n, memory()])
            kept.append(await client.invoke_async({"n": n}, input_id=f"row-{n}"))
        return sizes

    return {"sizes": asyncio.run(run())}


def submit(job: dict[str, Any]) -> dict[str, Any]:
    """Submit as fast as the client's own pacing allows."""

    async def run() -> float:
        client = RolloutClient(**job["client"])
        begun = time.monotonic()
        await asyncio.gather(*(client.invoke_async({"n": n}, input_id=f"row-{n}") for n in range(job["count"])))
        return time.monotonic() - begun

    return {"seconds": asyncio.run(run())}


def memory() -> float:
    """Resident bytes now (the peak, where there is no /proc)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    job = json.load(sys.stdin)
    result = {"batch": batch, "in_flight": in_flight, "submit": submit}[job["do"]](job)
    json.dump(result, sys.stdout)
    sys.stdout.flush()
    sys.stderr.flush()
    import os

    os._exit(0)  # rollouts that never end need no goodbye
