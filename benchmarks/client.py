"""The client against `agentcore-rl-toolkit==0.2.0`, in one run: the same agent, the same local runtime, the same rows.

Delivery: from result stored (the file's time) to result in hand. Cost: store requests and client CPU per rollout.
Memory: with 10,000 rollouts in flight. Quota: use of 25 requests a second over 1,000 submissions. The peer is installed
from PyPI into a virtual environment of its own; every client runs in a separate process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from aiohttp import web
from report import percentile, write
from runtime import free_port

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
LOCAL_ARN = "arn:aws:bedrock-agentcore:local:000000000000:runtime/scripted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--longest", type=float, default=20.0, help="seconds of the longest rollout")
    parser.add_argument("--in-flight", type=int, default=10_000)
    parser.add_argument("--submissions", type=int, default=1_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        peer = install_peer(home / "peer")
        figures = {
            "delivery": delivery(home, peer, args.rollouts, args.longest),
            "in_flight": in_flight(args.in_flight),
            "quota": quota(args.submissions),
        }
    write("client", figures)


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
    port = free_port()
    moto = [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    queues = subprocess.Popen(moto, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sqs = f"http://127.0.0.1:{port}"
    figures: dict[str, Any] = {}
    try:
        source = AgentSource.parse(
            home / "agent" / "rl_app.py", policy=SessionPolicy(cpus=0.5), env={"AWS_ENDPOINT_URL_SQS": sqs}
        )
        runtime = LocalRuntime(source, buckets=home / "buckets", max_sessions=2 * rollouts)
        with runtime as running:
            env = aws_environment(running.endpoint_url, sqs)
            modes = {
                "push (directory)": (sys.executable, {"s3_bucket": str(home / "results")}),
                "SQS": (sys.executable, {"s3_bucket": "results", "sqs_url": make_queue(sqs)}),
                "polling": (sys.executable, {"s3_bucket": "results"}),
                "peer's polling": (peer, {"s3_bucket": "results"}),
            }
            for n, (name, (python, settings)) in enumerate(modes.items()):
                client = {"agent_runtime_arn": running.arn, "exp_id": f"exp-{n}", "tps_limit": 1000, **settings}
                client["max_pool_connections"] = 100
                before = s3_requests(running.endpoint_url)
                job = {"do": "batch", "client": client, "rows": rows, "concurrency": rollouts}
                seen = work(python, job, env)
                root = home / "results" if "directory" in name else home / "buckets" / "results"
                late = [(at - (root / key).stat().st_mtime) * 1000 for key, at in seen["seen"]]
                figures[name] = {
                    "results": len(late),
                    "p50_ms": round(percentile(late, 0.5), 1),
                    "p99_ms": round(percentile(late, 0.99), 1),
                    "store_requests_per_rollout": round((s3_requests(running.endpoint_url) - before) / rollouts, 2),
                    "client_cpu_ms_per_rollout": round(seen["cpu"] / rollouts * 1000, 2),
                    "seconds": round(seen["seconds"], 1),
                }
    finally:
        queues.terminate()
        queues.wait()
    rows_out = [[name, *(str(value) for value in row.values())] for name, row in figures.items()]
    header = ["delivery", "results", "p50 ms", "p99 ms", "requests", "CPU ms", "seconds"]
    print(format_table(header, rows_out) + "\n")
    return figures


def in_flight(count: int) -> dict[str, Any]:
    job = {"do": "in_flight", "count": count, "every": max(1, count // 5)}
    with ScriptedRuntime(None) as server:
        client = {"agent_runtime_arn": LOCAL_ARN, "s3_bucket": "nowhere", "exp_id": "exp"}
        sizes = work(sys.executable, job | {"client": client}, aws_environment(server.url, server.url))["sizes"]
    first, last = sizes[1], sizes[-1]
    per = (last[1] - first[1]) / (last[0] - first[0])
    print(format_table(["in flight", "MB"], [[str(int(n)), f"{size / 1e6:.1f}"] for n, size in sizes]))
    print(f"{per / 1000:.1f} KB a rollout\n")
    return {
        "megabytes": {str(int(n)): round(size / 1e6, 1) for n, size in sizes},
        "kilobytes_each": round(per / 1000, 2),
    }


def quota(count: int) -> dict[str, Any]:
    arn = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/scripted"
    job = {
        "do": "submit",
        "count": count,
        "client": {"agent_runtime_arn": arn, "s3_bucket": "nowhere", "exp_id": "exp"},
    }
    with ScriptedRuntime(25) as server:
        seconds = work(sys.executable, job, aws_environment(server.url, server.url))["seconds"]
        figures = {
            "submissions": count,
            "seconds": round(seconds, 2),
            "utilization": round(count / (25 * seconds), 4),
            "throttles": server.throttled,
        }
    print(format_table(["quota of 25/s", "figure"], [[name, str(value)] for name, value in figures.items()]))
    return figures


# --- parts ---------------------------------------------------------------------------------------------------------


class ScriptedRuntime:
    """A runtime that takes every rollout on and never ends one, with a quota; and an S3 where nothing ever is."""

    def __init__(self, tps: float | None) -> None:
        self._tps = tps
        self._tokens, self._at = float(tps or 0), time.monotonic()
        self.throttled = 0

    def __enter__(self) -> ScriptedRuntime:
        from agentcore_rl_toolkit.common.private_loop import PrivateLoop

        self._loop = PrivateLoop("scripted")
        self._loop.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _handle(self, request: web.Request) -> web.Response:
        if not request.raw_path.startswith("/runtimes/"):
            if "list-type" in request.query:
                return web.Response(text="<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        if self._tps is not None:
            now = time.monotonic()
            self._tokens, self._at = min(self._tps, self._tokens + (now - self._at) * self._tps), now
            if self._tokens < 1:
                self.throttled += 1
                headers = {"x-amzn-ErrorType": "ThrottlingException"}
                return web.json_response({"message": "slow down"}, status=429, headers=headers)
            self._tokens -= 1
        settings = json.loads(await request.read()).get("_rollout")
        session = request.headers["X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"]
        key = f"{settings['exp_id']}/{settings['input_id']}/{session}.json"
        return web.json_response({"status": "processing", "s3_bucket": "nowhere", "result_key": key})


def work(python: str, job: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run([python, str(WORKER)], input=json.dumps(job), capture_output=True, text=True, env=env)
    if done.returncode != 0 or not done.stdout:
        raise SystemExit(f"the worker failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def aws_environment(endpoint: str, sqs: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return kept | {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": endpoint,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ENDPOINT_URL_SQS": sqs,
    }


def make_queue(sqs: str) -> str:
    import boto3

    client = boto3.client(
        "sqs", endpoint_url=sqs, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    for _ in range(100):
        try:
            return str(client.create_queue(QueueName="announcements")["QueueUrl"])
        except Exception:
            time.sleep(0.1)
    raise SystemExit("moto did not start")


def s3_requests(endpoint: str) -> int:
    """Requests the runtime's S3 has had; those of sessions go another way."""
    with urlopen(f"{endpoint}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if 'requests_total{operation="s3"' in line)


if __name__ == "__main__":
    main()
