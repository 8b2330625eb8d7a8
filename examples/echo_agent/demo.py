"""Runs the echo agent end to end on this machine: no AWS account, no network but loopback.

Starts `rl_app.py` as its own process, sends it a production request and five rollouts (one of them broken on purpose),
and prints what landed in the store.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit import Status, open_store
from agentcore_rl_toolkit.cli.results import results_table
from agentcore_rl_toolkit.result import Result

HERE = Path(__file__).parent
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
    port = free_port()
    # No AWS settings reach the agent: what runs here runs without an account.
    env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | {"PORT": str(port)}
    agent = subprocess.Popen([sys.executable, str(HERE / "rl_app.py")], env=env, stderr=subprocess.DEVNULL)
    try:
        wait_until_healthy(port, agent)
        print("1. a production request: the value comes back in the response")
        print("   →", invoke(port, {"prompt": "are you there?"}))

        print(f"2. {len(ROWS)} rollouts: each is answered at once and leaves one result in {root}")
        store = open_store(str(root))
        for i, row in enumerate(ROWS):
            settings = {"exp_id": exp_id, "input_id": f"row-{i}", "s3_bucket": str(root)}
            answer = invoke(port, row | {"_rollout": settings})
            print("   →", answer["status"], answer["result_key"])

        print("3. the results, as they are announced:\n")
        keys: list[str] = []
        deadline = time.monotonic() + 30
        while len(keys) < len(ROWS) and time.monotonic() < deadline:
            keys += store.announcements(exp_id, wait_seconds=5)
        print(results_table(store, sorted(keys)))
        completed = sum(Result.from_bytes(store.get(key)).status is Status.COMPLETED for key in keys)
        print(f"\n{completed} completed and {len(keys) - completed} failed, of {len(ROWS)}; the failed one on purpose.")
        command = os.path.relpath(Path(sys.executable).parent / "agentcore-rl")
        print(f"See them again with: {command} results {os.path.relpath(root)} --exp {exp_id}")
        return 0 if (len(keys), completed) == (len(ROWS), len(ROWS) - 1) else 1
    finally:
        agent.terminate()
        agent.wait(10)


def invoke(port: int, payload: dict[str, Any]) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"X-Amzn-Bedrock-AgentCore-Runtime-Session-Id": str(uuid.uuid4())}
    connection.request("POST", "/invocations", json.dumps(payload), headers)
    value: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return value


def wait_until_healthy(port: int, agent: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if agent.poll() is not None:
            break
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            connection.request("GET", "/ping")
            connection.getresponse().read()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"the agent did not start; try: PORT={port} {sys.executable} {HERE / 'rl_app.py'}")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
