"""The local runtime: what a session's start, life and end cost.

Start: from the invoke to the first line of the handler, for an agent that imports `strands`, against starting the same
agent as a fresh process. Live: 500 sessions of the echo agent at once. Churn: sessions started and stopped, and what is
left of them. Overhead: a routed request against the same request sent to the app directly. Each pair in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import aiohttp
from report import percentile, write

from agentcore_rl_toolkit.common.text_table import format_table
from agentcore_rl_toolkit.runtime import Runtime
from agentcore_rl_toolkit.runtime.local import LocalRuntime

AGENT = """
import os, time
{imports}
from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()

@app.rollout_entrypoint
def invoke_agent(payload):
    return {{"at": time.time()}}

if __name__ == "__main__":
    app.run(port=int(os.environ["PORT"]))
"""
STRANDS = "import strands, strands.models.openai"


async def start_benchmark(folder: Path, sessions: int, fresh: int) -> dict[str, Any]:
    agent = make_agent(folder / "strands_agent", STRANDS)
    fresh_ms, forked_ms, rates = [], [], []
    async with LocalRuntime(agent) as runtime:
        await start_one(runtime)  # the template's own import is not a session's
        for i in range(sessions):
            if i % max(1, sessions // fresh) == 0:  # by turns, so that a noisy moment hits both
                fresh_ms.append(await asyncio.to_thread(start_process, agent))
            session_id = str(uuid.uuid4())
            forked_ms.append(await start_one(runtime, session_id))
            await runtime.stop(session_id)
        for _ in range(3):
            begun = time.perf_counter()
            await in_parallel(sessions, 16, lambda: start_and_stop(runtime))
            rates.append(sessions / (time.perf_counter() - begun))
    figures = {
        "fresh_ms": {"p50": percentile(fresh_ms, 0.5), "p99": percentile(fresh_ms, 0.99), "n": len(fresh_ms)},
        "session_ms": {"p50": percentile(forked_ms, 0.5), "p99": percentile(forked_ms, 0.99), "n": len(forked_ms)},
        "sessions_per_second": {"median": percentile(rates, 0.5), "min": min(rates), "max": max(rates)},
    }
    ratio = figures["fresh_ms"]["p50"] / figures["session_ms"]["p50"]
    rows = [
        [name, f"{percentile(values, 0.5):.1f}", f"{percentile(values, 0.99):.1f}", share]
        for name, values, share in (("fresh process", fresh_ms, "1×"), ("session", forked_ms, f"{ratio:.0f}×"))
    ]
    print(format_table(["start of a strands agent", "p50 ms", "p99 ms", "faster"], rows))
    spread = f"{min(rates):.0f} to {max(rates):.0f}"
    print(f"{percentile(rates, 0.5):.0f} sessions/s started and stopped, 16 at a time ({spread})\n")
    return figures | {"times_faster_p50": round(ratio, 1)}


async def live_benchmark(folder: Path, sessions: int) -> dict[str, Any]:
    agent = make_agent(folder / "echo_agent", "")
    async with LocalRuntime(agent, max_sessions=sessions) as runtime:
        await start_one(runtime)
        before = memory_of_descendants()
        begun = time.perf_counter()
        await in_parallel(sessions - 1, 32, lambda: start_one(runtime))
        seconds = time.perf_counter() - begun
        await asyncio.sleep(1)
        after = memory_of_descendants()
        cpu = process_seconds(), time.perf_counter()
        await asyncio.sleep(5)
        busy = (process_seconds() - cpu[0]) / (time.perf_counter() - cpu[1])
        live = len(runtime.sessions)
        ids = [session.id for session in runtime.sessions]
        again = [await start_one(runtime, session_id) for session_id in ids[:: max(1, live // 50)]]
    figures = {
        "live": live,
        "seconds_to_start": round(seconds, 2),
        "megabytes_per_session": round((after - before) / 1e6 / (live - 1), 2),
        "runtime_cores_while_idle": round(busy, 3),
        "request_ms_p50": round(percentile(again, 0.5), 2),
    }
    rows = [[name.replace("_", " "), str(value)] for name, value in figures.items()]
    print(format_table(["live sessions of the echo agent", "figure"], rows) + "\n")
    return figures


async def churn_benchmark(folder: Path, sessions: int) -> dict[str, Any]:
    from agentcore_rl_toolkit.runtime.local.agent import LocalAgent
    from agentcore_rl_toolkit.runtime.local.supervisor.runtime_settings import RuntimeSettings
    from agentcore_rl_toolkit.runtime.local.supervisor.supervisor import Supervisor

    agent = make_agent(folder / "churn_agent", "")
    async with Supervisor(RuntimeSettings.make(agent)) as supervisor:  # in this process, which shows what it holds
        runtime = supervisor.agent(agent.parent.name)
        assert isinstance(runtime, LocalAgent)
        await in_parallel(200, 16, lambda: start_and_stop(runtime))  # what is cached once is not a leak
        before = traces(supervisor)
        begun = time.perf_counter()
        await in_parallel(sessions, 16, lambda: start_and_stop(runtime))
        seconds = time.perf_counter() - begun
        await asyncio.sleep(2)
        after = traces(supervisor)
    rows = [[name, str(before[name]), str(after[name]), str(after[name] - before[name])] for name in before]
    print(format_table([f"churn of {sessions} sessions", "before", "after", "difference"], rows))
    print(f"{sessions / seconds:.0f} sessions/s\n")
    return {"sessions": sessions, "per_second": round(sessions / seconds, 1), "before": before, "after": after}


async def overhead_benchmark(folder: Path, requests: int) -> dict[str, Any]:
    agent = make_agent(folder / "overhead_agent", "")
    port = free_port()
    direct_ms, routed_ms, local_ms = [], [], []
    process = await asyncio.to_thread(launch, agent, port)
    try:
        async with LocalRuntime(agent) as runtime, aiohttp.ClientSession() as http:
            session_id = str(uuid.uuid4())
            await start_one(runtime, session_id)
            arn = runtime.arn.replace(":", "%3A").replace("/", "%2F")
            from yarl import URL

            routed = URL(f"{runtime.endpoint_url}/runtimes/{arn}/invocations", encoded=True)
            direct = URL(f"http://127.0.0.1:{port}/invocations")
            headers = {"X-Amzn-Bedrock-AgentCore-Runtime-Session-Id": session_id, "Content-Type": "application/json"}
            await wait_for(http, port)
            for _ in range(requests):
                direct_ms.append(await post(http, direct, headers))
                routed_ms.append(await post(http, routed, headers))
                local_ms.append(await start_one(runtime, session_id, whole=True))
    finally:
        process.terminate()
        process.wait()
    rows, figures = [], {}
    names = {"direct": direct_ms, "routed, over HTTP": routed_ms, "routed, in process": local_ms}
    for name, values in names.items():
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        figures[name] = {"p50_ms": round(p50, 3), "p99_ms": round(p99, 3)}
        rows.append([name, f"{p50:.2f}", f"{p99:.2f}", f"{p50 / percentile(direct_ms, 0.5):.2f}"])
    print(format_table(["request", "p50 ms", "p99 ms", "÷ direct"], rows))
    return figures


# --- parts ---------------------------------------------------------------------------------------------------------


def make_agent(folder: Path, imports: str) -> Path:
    folder.mkdir()
    path = folder / "rl_app.py"
    path.write_text(AGENT.format(imports=imports))
    return path


async def start_one(runtime: Runtime, session_id: str | None = None, *, whole: bool = False) -> float:
    """Invoke; milliseconds to the handler's first line, or to the whole answer."""
    begun = time.time()
    answer = await runtime.invoke(session_id or str(uuid.uuid4()), b"{}")
    at: float = json.loads(await answer.read())["at"]
    return ((time.time() if whole else at) - begun) * 1000


async def start_and_stop(runtime: Runtime) -> None:
    session_id = str(uuid.uuid4())
    await start_one(runtime, session_id)
    await runtime.stop(session_id)


def start_process(agent: Path) -> float:
    """Start the agent as a fresh process and invoke it; milliseconds to the handler's first line."""
    import http.client

    port, begun = free_port(), time.time()
    process = launch(agent, port)
    try:
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port)
                connection.request("POST", "/invocations", b"{}")
                at: float = json.loads(connection.getresponse().read())["at"]
                return (at - begun) * 1000
            except OSError:
                time.sleep(0.002)
    finally:
        process.terminate()
        process.wait()


def launch(agent: Path, port: int) -> subprocess.Popen[bytes]:
    env = os.environ | {"PORT": str(port)}
    return subprocess.Popen([sys.executable, str(agent)], env=env, stderr=subprocess.DEVNULL)


async def in_parallel(count: int, width: int, make: Any) -> None:
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await make()

    await asyncio.gather(*(worker() for _ in range(width)))


async def post(http: aiohttp.ClientSession, url: Any, headers: dict[str, str]) -> float:
    begun = time.perf_counter()
    async with http.post(url, data=b"{}", headers=headers) as response:
        await response.read()
        assert response.status == 200
    return (time.perf_counter() - begun) * 1000


async def wait_for(http: aiohttp.ClientSession, port: int) -> None:
    for _ in range(500):
        try:
            async with http.get(f"http://127.0.0.1:{port}/ping"):
                return
        except aiohttp.ClientError:
            await asyncio.sleep(0.02)


def descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        parents.setdefault(int(text.rsplit(")", 1)[1].split()[1]), []).append(int(name))
    found, queue = [], [os.getpid()]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


def memory_of_descendants() -> int:
    """Proportional set size: a page that n processes share counts once, in n parts."""
    total = 0
    for pid in descendants():
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def process_seconds() -> float:
    """CPU seconds of this process and all below it, so far."""
    total = 0.0
    for pid in [os.getpid(), *descendants()]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def traces(runtime: Any) -> dict[str, int]:
    import gc

    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    logs = len(os.listdir(runtime.machine.state / "logs"))
    files = sum(len(names) for _, _, names in os.walk(runtime.machine.state)) - logs
    groups = len(list(Path("/sys/fs/cgroup").glob(f"**/{runtime.machine.cgroups.name}/*/")))
    return {
        "processes": len(descendants()),
        "files": files,
        "kept logs": logs,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "control groups": groups,
        "runtime's memory MB": round(resident / 1e6),
    }


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--fresh", type=int, default=10)
    parser.add_argument("--live", type=int, default=500)
    parser.add_argument("--churn", type=int, default=5000)
    parser.add_argument("--requests", type=int, default=1000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        figures = {
            "start": await start_benchmark(home, args.starts, args.fresh),
            "live": await live_benchmark(home, args.live),
            "churn": await churn_benchmark(home, args.churn),
            "overhead": await overhead_benchmark(home, args.requests),
        }
    write("runtime", figures)


if __name__ == "__main__":
    asyncio.run(main())
