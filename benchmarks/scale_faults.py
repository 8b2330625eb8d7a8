"""Faults under load: a gateway and an engine replica are killed with 2,000 rollouts in flight.

The gateway is `gateway serve` with a log and two engine replicas, each a process. This process runs the rollouts as a
trainer does (`RolloutRunner`, `GatewayClient`); its sessions are scripted agents that ask turn after turn and try a
call again twice, as SDKs do by default. What is killed starts again at once, at the same address; the gateway of
`worker` does so itself (`--restart`). The client that is killed and the store that is away are in `scale_client.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from agentcore_rl_toolkit import RolloutClient  # noqa: E402
from agentcore_rl_toolkit.engine import tiny  # noqa: E402
from agentcore_rl_toolkit.gateway.remote.gateway_client import GatewayClient  # noqa: E402
from agentcore_rl_toolkit.rollout import RolloutOptions, RolloutRunner  # noqa: E402
from support.own_runtime import OwnRuntime  # noqa: E402
from support.process import free_port  # noqa: E402

KEY = "scale-admin-key-of-a-benchmark"
TURNS, TOKENS = 4, 4
_TRIES = 3
"""Of a call: the first and two more, as the SDKs of OpenAI and Anthropic do."""


class Agents:
    """The sessions: what they were told, and when they were last answered."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.dice = seconds, random.Random(0)
        self.answered: list[float] = []
        self.running = self.failed = 0
        self._http: Any = None

    async def result(self, payload: dict[str, Any]) -> bytes:
        import aiohttp

        if self._http is None:
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256))
            self._loop = asyncio.get_running_loop()
        messages = [{"role": "user", "content": f"row {payload['n']}"}]
        self.running += 1
        try:
            for _ in range(TURNS):
                await asyncio.sleep(self.seconds / TURNS * (0.5 + self.dice.random()))
                reply = await self._call(payload["_rollout"]["base_url"], messages)
                messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "go on"}]
        except (aiohttp.ClientError, OSError) as error:
            self.failed += 1
            said = {"kind": "engine_error", "type": "APIConnectionError", "message": str(error)}
            return json.dumps({"status_code": 500, "stop_reason": str(error), "error": said}).encode()
        finally:
            self.running -= 1
        return json.dumps({"status_code": 200, "stop_reason": "end_turn", "rewards": [1.0]}).encode()

    async def _call(self, base_url: str, messages: list[dict[str, str]]) -> str:
        import aiohttp

        for left in reversed(range(_TRIES)):
            try:
                body = {"model": "any", "messages": messages, "max_tokens": TOKENS}
                async with self._http.post(f"{base_url}/chat/completions", json=body) as answer:
                    if answer.status >= 500:
                        raise aiohttp.ClientError(f"status {answer.status}: {(await answer.read())[:200]!r}")
                    said = await answer.json()
                    self.answered.append(time.monotonic())
                    return str(said["choices"][0]["message"]["content"])
            except (aiohttp.ClientError, OSError):
                if not left:
                    raise
                await asyncio.sleep(0.5 * 2 ** (_TRIES - 1 - left) * (0.75 + 0.25 * self.dice.random()))
        raise AssertionError

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._http.close(), self._loop).result()


class Served:
    """A process that can be killed and started again."""

    def __init__(self, line: list[str], port: int) -> None:
        self._line, self._port = line, port
        self._start()

    def _start(self) -> None:
        env = os.environ | {"AGENTCORE_RL_ADMIN_KEY": KEY}
        self._process = subprocess.Popen(
            [sys.executable, *self._line], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def wait(self) -> None:
        """Until it listens."""
        while self._process.poll() is None:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", self._port)):
                    return
            time.sleep(0.05)
        raise SystemExit(f"{self._line} ended with {self._process.returncode}")

    def kill_and_start(self) -> None:
        self.kill()
        self._start()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def kill_worker(self) -> None:
        """Kill the process that it starts again."""
        pid = self._process.pid
        os.kill(int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]), signal.SIGKILL)


def measure(kind: str, rollouts: int, seconds: float) -> dict[str, Any]:
    """One run in which a gateway or a replica is killed when a third of all calls has been answered."""
    ports = [free_port() for _ in range(3)]
    replicas = [[str(Path(__file__)), "--role", str(port)] for port in ports[1:]]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        line = [
            "-m",
            "agentcore_rl_toolkit.cli",
            "gateway",
            "serve",
            "--port",
            str(ports[0]),
            "--log",
            str(folder / "log"),
        ]
        line += ["--restart"] if kind == "worker" else []
        line += ["--tokenizer", str(tiny.path()), "--no-images", "--body-timeout", "600"]
        line += [part for port in ports[1:] for part in ("--engine", f"vllm=http://127.0.0.1:{port}")]
        served = [Served(one, port) for one, port in zip([line, *replicas], ports, strict=True)]
        for one in served:
            stack.callback(one.kill)
        for one in served:
            one.wait()
        agents, killed_at, in_flight = Agents(seconds), list[float](), list[int]()

        def kill() -> None:
            while len(agents.answered) < rollouts * TURNS // 3:
                time.sleep(0.05)
            killed_at.append(time.monotonic())
            in_flight.append(agents.running)
            if kind == "worker":
                served[0].kill_worker()
            else:
                served[0 if kind == "gateway" else 1].kill_and_start()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        began = time.monotonic()
        found = run(f"http://127.0.0.1:{ports[0]}", agents, folder / "results", rollouts)
        later = sorted(at for at in agents.answered if at > killed_at[0] + 0.2)
        return found | {
            "seconds": round(time.monotonic() - began, 1),
            "longest_silence_s": round(max(b - a for a, b in zip([killed_at[0], *later], later, strict=False)), 2),
            "in_flight_then": in_flight[0],
            "calls_given_up": agents.failed,
        }


def run(url: str, agents: Agents, results: Path, rollouts: int) -> dict[str, Any]:
    """Run the rollouts, and account for each."""
    with (
        GatewayClient(url, admin_key=KEY) as gateway,
        RolloutClient(OwnRuntime(agents.result), results, "exp", tps_limit=1e6) as client,
    ):
        options = RolloutOptions(n=2, max_concurrent_sessions=rollouts, timeout=None, max_failures=rollouts)
        with contextlib.closing(RolloutRunner(client, gateway, options)) as runner:
            groups = list(runner.run({"n": number} for number in range(rollouts // 2)))
        agents.close()
        left = gateway.metrics()["sessions_open"]
    ended = [rollout for group in groups for rollout in group.rollouts]
    places = Counter((rollout.input_id, rollout.sample) for rollout in ended)
    whole = [
        rollout for rollout in ended if rollout.rows and sum(row.trained for row in rollout.rows) == TURNS * TOKENS
    ]
    return {
        "rollouts": rollouts,
        "completed": sum(rollout.trained for rollout in ended),
        "once_each": len(places) == len(ended) == rollouts,
        "with_every_token_once": len(whole),
        "ran_again": sum(len(group.others) for group in groups),
        "sessions_left_open": left,
    }


def serve_replica(port: int) -> None:
    """A vLLM server as far as the wire shows."""
    from http.server import ThreadingHTTPServer

    from support.fake_server import Handler
    from support.fake_vllm import FakeVllm

    class Bound(Handler):  # type: ignore[misc]
        server_fake = FakeVllm(context_length=4096)

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size, allow_reuse_address = True, 1024, True

    Server(("127.0.0.1", port), Bound).serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=["gateway", "worker", "replica"], help="what is killed")
    parser.add_argument("--rollouts", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=40.0, help="that a session takes, about")
    parser.add_argument("--output", default="scale", help="file of benchmarks/results (default: scale)")
    args = parser.parse_args()
    figures = {}
    for kind in args.kinds:
        figures[kind] = measure(kind, args.rollouts, args.seconds)
        print(f"{kind}: {json.dumps(figures[kind])}", flush=True)
    report.add(args.output, {"faults": figures})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--role"]:
        serve_replica(int(sys.argv[2]))
    main()
