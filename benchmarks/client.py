"""The client against `agentcore-rl-toolkit==0.2.0`, in one run: the same agent, the same local runtime, the same rows.

Delivery: from result stored (the file's time) to result in hand. Cost: store requests and client CPU per rollout. The
peer only polls, and so does ours here; results that are announced, and the client at scale, are in `scale_client.py`.
The peer is installed from PyPI into a virtual environment of its own; each client runs in a separate process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from report import percentile, write

from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.runtime.local import AgentSource, LocalRuntime, SessionPolicy

AGENT = """
import time
from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()

@app.rollout_entrypoint
def invoke_agent(payload):
    time.sleep(payload["seconds"])
    return {"rewards": 1.0}
"""
WORKER = Path(__file__).with_name("client_worker.py")
PEER = "agentcore-rl-toolkit[core]==0.2.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds of the longest rollout")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        peer = install_peer(home / "peer")
        figures = delivery(home, peer, args.rollouts, args.longest)
    write("client", {"delivery": figures})


def install_peer(home: Path) -> str:
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "install", "-qq", PEER], check=True)
    return python


def delivery(home: Path, peer: str, rollouts: int, longest: float) -> dict[str, Any]:
    dice = random.Random(1)
    rows = [{"seconds": round(0.2 * (longest / 0.2) ** dice.random(), 3), "row": n} for n in range(rollouts)]
    (home / "agent").mkdir()
    (home / "agent" / "rl_app.py").write_text(AGENT)
    figures: dict[str, Any] = {}
    source = AgentSource.parse(home / "agent" / "rl_app.py", policy=SessionPolicy(cpus=0.5))
    with LocalRuntime(source, buckets=home / "buckets", max_sessions=2 * rollouts) as running:
        env = aws_environment(running.endpoint_url)
        for n, (name, python) in enumerate({"polling": sys.executable, "peer's polling": peer}.items()):
            client = {"agent_runtime_arn": running.arn, "exp_id": f"exp-{n}", "tps_limit": 1000}
            client |= {"s3_bucket": "results", "max_pool_connections": 100}
            before = s3_requests(running.endpoint_url)
            seen = work(python, {"client": client, "rows": rows, "concurrency": rollouts}, env)
            root = home / "buckets" / "results"
            late = [(at - (root / key).stat().st_mtime) * 1000 for key, at in seen["seen"]]
            figures[name] = {
                "results": len(late),
                "p50_ms": round(percentile(late, 0.5), 1),
                "p99_ms": round(percentile(late, 0.99), 1),
                "store_requests_per_rollout": round((s3_requests(running.endpoint_url) - before) / rollouts, 2),
                "client_cpu_ms_per_rollout": round(seen["cpu"] / rollouts * 1000, 2),
                "seconds": round(seen["seconds"], 1),
            }
    rows_out = [[name, *(str(value) for value in row.values())] for name, row in figures.items()]
    header = ["delivery", "results", "p50 ms", "p99 ms", "requests", "CPU ms", "seconds"]
    print(format_table(header, rows_out) + "\n")
    return figures


def work(python: str, job: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run([python, str(WORKER)], input=json.dumps(job), capture_output=True, text=True, env=env)
    if done.returncode != 0 or not done.stdout:
        raise SystemExit(f"the worker failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def aws_environment(endpoint: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return kept | {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": endpoint,
        "AWS_ENDPOINT_URL_S3": endpoint,
    }


def s3_requests(endpoint: str) -> int:
    """Requests the runtime's S3 has had; those of sessions go another way."""
    with urlopen(f"{endpoint}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if 'requests_total{operation="s3"' in line)


if __name__ == "__main__":
    main()
