"""The local runtime at scale: what a session costs each of its processes, and how many a second this machine runs.

    python benchmarks/scale_local.py                          this tree
    python benchmarks/scale_local.py --before v0.3.0          the same of an older commit, by turns, in the same run

CPU milliseconds per session, from the kernel's counts: the program (which holds the client or the runtime), the
supervisor, the template, the sessions themselves. `echo` starts a session, invokes it and stops it; `rollout` sends it
a rollout through `RolloutClient` and waits for the stored result. `phases` says where a session's CPU time in the
supervisor goes: its phases one after the other, for a hundred sessions each. One process can start as many sessions a
second as its own milliseconds allow, whatever the machine; all processes together, as many as the cores allow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from report import ROOT, add, percentile
from runtime import in_parallel, make_agent, start_and_stop, start_one

from agentcore_rl_toolkit.client import RolloutClient
from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.runtime.local import LocalRuntime

ROLLOUT_AGENT = """
from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()

@app.rollout_entrypoint
def invoke_agent(payload):
    return {"rewards": 1.0}
"""
_RUN = """
import os, runpy, sys
sys.path[:1] = [sys.argv.pop(1), os.path.dirname(sys.argv[1])]
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PARTS = ("program", "supervisor", "template", "sessions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=300, help="sessions in each turn")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--turns", type=int, default=2, help="turns of each tree; the best of each counts")
    parser.add_argument("--before", metavar="COMMIT", help="measure this commit too")
    parser.add_argument("--measure", choices=("echo", "rollout", "phases"), help="only measure, and print JSON")
    args = parser.parse_args()
    if args.measure:
        measures = {"echo": echo, "rollout": rollouts, "phases": phases}
        print(json.dumps(measures[args.measure](args.sessions, args.at_once)))
        return
    with tempfile.TemporaryDirectory() as folder:
        trees = {"now": ROOT / "src"}
        if args.before:
            trees = {"before": check_out(args.before, Path(folder) / "before")} | trees
        figures = {kind: compare(kind, trees, args) for kind in ("echo", "rollout")}
        spent = run_measure("phases", trees["now"], args)
    print(format_table(["µs of the supervisor", *spent], [["", *map(str, spent.values())]]) + "\n")
    add("scale", {"local_runtime": figures, "supervisor_us": spent})


def check_out(commit: str, folder: Path) -> Path:
    """An older commit's sources."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder / "src"


def compare(kind: str, trees: dict[str, Path], args: argparse.Namespace) -> dict[str, Any]:
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    for _ in range(args.turns):
        for name, source in trees.items():  # by turns, so that a noisy moment hits both
            turns[name].append(run_measure(kind, source, args))
    best = {name: min(found, key=lambda one: one["cpu_ms"]["all"]) for name, found in turns.items()}
    rows = []
    for name, one in best.items():
        start = f"{one['start_ms_p50']:.1f}" if "start_ms_p50" in one else "–"
        cpu = [f"{one['cpu_ms'][part]:.2f}" for part in (*PARTS, "all")]
        rows.append([name, *cpu, f"{one['per_second']:.0f}", start, f"{one['at_full_cores']:.0f}"])
    header = [f"CPU ms per {kind}", *PARTS, "all", "sessions/s", "start p50 ms", "÷ CPU, on all cores"]
    print(format_table(header, rows) + "\n")
    return best


def run_measure(kind: str, source: Path, args: argparse.Namespace) -> dict[str, Any]:
    arguments = ["--measure", kind, "--sessions", str(args.sessions), "--at-once", str(args.at_once)]
    # Not by PYTHONPATH: templates don't preload what is found there.
    command = [sys.executable, "-c", _RUN, str(source), __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- in a separate process -----------------------------------------------------------------------------------------


def echo(sessions: int, at_once: int) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            async with LocalRuntime(make_agent(Path(folder) / "echo", "")) as runtime:
                await in_parallel(2 * at_once, at_once, lambda: start_and_stop(runtime))
                before, begun = cpu_seconds(), time.perf_counter()
                await in_parallel(sessions, at_once, lambda: start_and_stop(runtime))
                seconds, after = time.perf_counter() - begun, cpu_seconds()
                starts = []
                for _ in range(40):  # one at a time, each after the runtime has prepared the next
                    session_id = str(uuid.uuid4())
                    starts.append(await start_one(runtime, session_id))
                    await runtime.stop(session_id)
                    await asyncio.sleep(0.05)
        return per_session(sessions, seconds, before, after) | {"start_ms_p50": round(percentile(starts, 0.5), 2)}

    return asyncio.run(run())


def rollouts(count: int, at_once: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder) / "rl_app.py"
        agent.write_text(ROLLOUT_AGENT)
        with RolloutClient(agent, f"{folder}/results", "exp") as client:
            list(client.run_batch([{"n": n} for n in range(2 * at_once)], at_once))
            before, begun = cpu_seconds(), time.perf_counter()
            items = list(client.run_batch([{"n": n} for n in range(count)], at_once))
            seconds, after = time.perf_counter() - begun, cpu_seconds()
            assert all(item.result is not None for item in items)
    return per_session(count, seconds, before, after)


def phases(sessions: int, at_once: int) -> dict[str, int]:
    """CPU microseconds of a supervisor in this process for each phase of a session; the least of some rounds."""
    from agentcore_rl_toolkit.common.private_loop import run_alone  # an older tree may lack these
    from agentcore_rl_toolkit.runtime.local.agent import LocalAgent
    from agentcore_rl_toolkit.runtime.local.supervisor.runtime_settings import RuntimeSettings
    from agentcore_rl_toolkit.runtime.local.supervisor.supervisor import Supervisor

    found: dict[str, list[float]] = {"prepare": [], "start": [], "request": [], "end": []}

    async def spend(phase: str, work: list[Coroutine[Any, Any, object]]) -> None:
        before = time.thread_time()
        await asyncio.gather(*work)
        found[phase].append(1e6 * (time.thread_time() - before) / len(work))

    async def ask(session: Any) -> None:
        await (await session.invoke(b"{}", {}, {"Content-Type": "application/json"})).read()

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = RuntimeSettings.make(make_agent(Path(folder) / "echo", ""), spares=0)
            async with Supervisor(settings) as supervisor:
                agent = supervisor.agent("echo")
                assert isinstance(agent, LocalAgent)
                template, table = await agent.keeper.template(), supervisor._table
                assert table is not None
                for _ in range(max(1, sessions // 50)):
                    made = [table.create(agent.source) for _ in range(100)]
                    for _ in made:
                        table.reserve_place()
                    await spend("prepare", [one.prepare(template) for one in made])
                    await asyncio.sleep(2)  # until they have imported the agent
                    await spend("start", [one.assign(str(uuid.uuid4()), {}) for one in made])
                    await spend("request", [ask(one) for one in made])
                    await spend("end", [_awaited(one.end("it is over")) for one in made])

    run_alone(run())
    return {phase: round(min(rounds)) for phase, rounds in found.items()}


async def _awaited(task: asyncio.Task[None]) -> None:
    await task


def per_session(count: int, seconds: float, before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    cpu = {name: round((after[name] - before[name]) / count * 1000, 3) for name in PARTS}
    cpu["all"] = round(sum(cpu.values()), 3)
    full = (os.cpu_count() or 1) * 1000 / cpu["all"]
    return {"cpu_ms": cpu, "per_second": round(count / seconds, 1), "at_full_cores": round(full, 1)}


def cpu_seconds() -> dict[str, float]:
    """CPU time so far, by part. What a template has waited for are its sessions."""
    found = dict.fromkeys(PARTS, 0.0)
    found["program"] = time.process_time()
    for pid in children(os.getpid()):
        _add_cpu_below(pid, found)
    return found


def _add_cpu_below(pid: int, found: dict[str, float]) -> None:
    """Of a supervisor and its workers, or of a launcher."""
    if b"supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes():
        found["supervisor"] += on_cpu(pid)
        for child in children(pid):
            _add_cpu_below(child, found)
        return
    for template in children(pid):
        found["template"] += on_cpu(template)
        fields = Path(f"/proc/{template}/stat").read_text().rsplit(")", 1)[1].split()
        found["sessions"] += (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def on_cpu(pid: int) -> float:
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def children(pid: int) -> list[int]:
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in paths for child in path.read_text().split()]


if __name__ == "__main__":
    main()
