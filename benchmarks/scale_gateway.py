"""Where the gateway runs, and what it costs the process that has the engine: CPU time a call, calls a second, recovery.

Each place gets the same traffic: agents in a process of their own, each asking turn after turn; the engine is a script
in this process. Calls a second are a ratio of rounds that alternate. Every figure of CPU time is of one process's own,
while agents call. Read CPU time before calls a second: these also say how long processes waited for a core, and a
machine that does more keeps this process waiting longer than the workers, because Linux shares cores among sessions of
processes (`sched_autogroup_enabled`), and each worker is a session while this process is a part of its caller's.

`two_workers_to_one_by_cpu` is what two workers can do of what one can, if each has a core: it follows from what a call
costs them, with as many agents for both as for the one. `two_workers_to_one_each_by_cpu` is the same with as many for
each: a call costs a process less, the more of them it finds whenever it looks. `trainer_cpu_to_here` is what a call
costs this process with workers, as a share of a gateway in it.

`step` is a fixed amount of Python in this process while agents call the gateway, each after a pause, as those that use
tools do. `added_cpu` is the CPU time of this process's other threads meanwhile, as a share of the seconds it took: that
is what the step can wait for them, whatever else the machine does. `wall` compares seconds with those without agents.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from agentcore_rl_toolkit.engine.base import SampleRequest  # noqa: E402
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine  # noqa: E402
from agentcore_rl_toolkit.gateway.gateway import Gateway  # noqa: E402
from agentcore_rl_toolkit.gateway.remote.gateway_processes import GatewayProcesses  # noqa: E402
from support.gateway import gateway_tokenizer  # noqa: E402

AGENTS = 48
PAUSE = 0.75
"""Seconds an agent waits before its next call, beside a step."""


def measure(seconds: float, rounds: int) -> dict[str, Any]:
    """The figures of this section."""
    reply = [index % 400 + 20 for index in range(50)]
    engine = ScriptedEngine(lambda request: _answer(request, reply), chunk=50)
    found: dict[str, list[dict[str, float]]] = {"here": [], "workers_1": [], "workers_2": [], "workers_2_each": []}
    with (
        Gateway(engine, tokenizer=gateway_tokenizer()) as here,
        GatewayProcesses(engine, gateway_tokenizer(), workers=1) as one,
        GatewayProcesses(engine, gateway_tokenizer(), workers=2) as two,
    ):
        places: dict[str, tuple[Any, list[int], int]] = {
            "here": (here, [], AGENTS),
            "workers_1": (one, one.pids, AGENTS),
            "workers_2": (two, two.pids, AGENTS),
            "workers_2_each": (two, two.pids, 2 * AGENTS),
        }
        for _ in range(rounds):
            for name, (gateway, pids, agents) in places.items():
                found[name].append(_round(gateway, pids, agents, seconds))
                engine.requests.clear()
        steps = {name: _steps(places[name][0], seconds, rounds) for name in ("here", "workers_2")}
    figures: dict[str, Any] = {name: _medians(rounds_of) for name, rounds_of in found.items()}
    pairs = zip(found["workers_1"], found["workers_2"], strict=True)
    figures["two_workers_to_one"] = round(statistics.median(b["calls_s"] / a["calls_s"] for a, b in pairs), 2)
    one_ms, two_ms, each_ms = (figures[f"workers_{name}"]["worker_cpu_ms"] for name in ("1", "2", "2_each"))
    figures["two_workers_to_one_by_cpu"] = round(2 * one_ms / two_ms, 2)
    figures["two_workers_to_one_each_by_cpu"] = round(2 * one_ms / each_ms, 2)
    figures["each_was"] = ""  # what the page says of it, if it was measured apart from the others
    figures["trainer_cpu_to_here"] = round(
        figures["workers_2"]["trainer_cpu_ms"] / figures["here"]["trainer_cpu_ms"], 2
    )
    return figures | {"step": steps, "recovery_s": _recovery()}


def _answer(request: SampleRequest, reply: list[int]) -> list[int]:
    return [*reply, gateway_tokenizer().eos_token_id or 0]


def _round(gateway: Any, pids: list[int], agents: int, seconds: float) -> dict[str, float]:
    """Calls a second, and CPU milliseconds a call of this process and of the workers."""
    with _traffic(gateway, agents) as load:
        before, own = sum(map(report.cpu_of, pids)), time.process_time()
        calls, took = _run(load, seconds)
        own, workers = time.process_time() - own, sum(map(report.cpu_of, pids)) - before
    return {
        "calls_s": calls / took,
        "trainer_cpu_ms": 1000 * own / max(1, calls),
        "worker_cpu_ms": 1000 * workers / max(1, calls),
    }


@contextmanager
def _traffic(gateway: Any, agents: int = AGENTS) -> Iterator[subprocess.Popen[str]]:
    """Agents that wait for a line on their stdin, and tell how many calls they made."""
    urls = [gateway.open_session()["base_url"] for _ in range(agents)]
    load = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("scale_agents.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,  # as workers are: Linux shares cores among sessions of processes
    )
    assert load.stdin is not None
    load.stdin.write(json.dumps(urls) + "\n")
    try:
        yield load
    finally:
        load.kill()
        load.communicate()


def _run(load: subprocess.Popen[str], seconds: float, pause: float = 0.0) -> tuple[int, float]:
    assert load.stdin is not None
    assert load.stdout is not None
    load.stdin.write(f"[{seconds}, {pause}]\n")
    calls, took = json.loads(load.stdout.readline())
    return calls, took


def _step() -> tuple[float, float]:
    """A fixed amount of Python: its seconds, and CPU seconds of this process's other threads meanwhile."""
    began, own, all_ = time.perf_counter(), time.thread_time(), time.process_time()
    total = 0
    for number in range(20_000_000):
        total += number & 3
    own, all_ = time.thread_time() - own, time.process_time() - all_
    return time.perf_counter() - began, max(0.0, all_ - own)


def _steps(gateway: Any, seconds: float, rounds: int) -> dict[str, float]:
    """Steps without agents and with them, by turns."""
    walls, added, rates = list[float](), list[float](), list[float]()
    pool = ThreadPoolExecutor(1)
    for _ in range(rounds):
        alone, _ = _step()
        with _traffic(gateway) as load:
            running = pool.submit(_run, load, seconds + 1, PAUSE)
            time.sleep(1)
            took, others = _step()
            calls, ran = running.result()
        walls.append(took / alone)
        added.append(others / took)
        rates.append(calls / ran)
    figures = {"calls_s": rates, "wall": walls, "added_cpu": added}
    return {name: round(statistics.median(values), 4) for name, values in figures.items()}


def _recovery() -> float:
    """Seconds from the death of all workers until a session that was open is folded, its next turn included."""
    engine = ScriptedEngine(lambda request: _answer(request, [20, 21]))
    with GatewayProcesses(engine, gateway_tokenizer(), workers=2) as gateway, _traffic(gateway) as load:
        session = gateway.open_session()
        _run(load, 0.5)
        for pid in gateway.pids:
            os.kill(pid, signal.SIGKILL)
        began = time.perf_counter()
        gateway.trajectories(session["session_id"])
        return round(time.perf_counter() - began, 2)


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5, help="of each place")
    parser.add_argument("--output", default="scale", help="file of benchmarks/results (default: scale)")
    args = parser.parse_args()
    figures = measure(args.seconds, args.rounds)
    print(json.dumps(figures, indent=2))
    report.add(args.output, {"gateway": figures})


if __name__ == "__main__":
    main()
