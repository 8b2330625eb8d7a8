"""The client at scale: ten thousand rollouts in flight, results in hand, quotas, faults, and several clients.

In miniature: the runtime is one scripted process (`scale_runtime.py`), whose sessions wait or call a gateway with a
scripted engine, so that the client is what is measured. Each client runs in a separate process. A part is named on
the command line: `python benchmarks/scale_client.py latency quota`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

HERE = Path(__file__)
AWS_ARN = "arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/scripted"
LOCAL_ARN = "arn:aws:bedrock-agentcore:local:000000000000:runtime/scripted"
BUCKET = "results-here"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=f"measure these of {', '.join(PARTS)}")
    parser.add_argument("--sessions", type=int, default=10_000, help="rollouts at the same time")
    parser.add_argument("--rollouts", type=int, default=100_000, help="rollouts over which memory is to be flat")
    parser.add_argument("--output", default="scale", help="file of benchmarks/results (default: scale)")
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    for part in args.parts:
        began = time.monotonic()
        figures[part] = PARTS[part](args)
        print(f"{part} ({time.monotonic() - began:.0f} s): {json.dumps(figures[part])}", flush=True)
    from report import add

    add(args.output, {"client": figures})


# --- parts -----------------------------------------------------------------------------------------------------------


def in_flight(args: argparse.Namespace, turns: int = 2) -> dict[str, Any]:
    """So many rollouts at once, each with some turns through a gateway in a separate process."""
    from report import cpu_of

    seconds = max(60.0, args.sessions / 100)
    with (
        gateway_process() as (url, key, pid),
        runtime(seconds=(seconds, seconds), turns=turns, gateway=url, admin_key=key) as it,
        shared_memory() as folder,
    ):
        before = cpu_of(pid)
        seen = client(it, {"do": "batch", "rows": args.sessions, "at_once": args.sessions}, store=folder)
        counts, gateway_cpu = figures_of(it)["counts"], cpu_of(pid) - before
    return {
        "rollouts": args.sessions,
        "results": seen["results"],
        "once_each": seen["once_each"],
        "most_at_once": counts["most"],
        "model_calls": counts["calls"],
        "gateway_cpu_ms_a_call": round(gateway_cpu / counts["calls"] * 1000, 3),
        "kb_each": round(seen["kb_at_most"] / args.sessions, 1),
        "client_cpu_ms_each": round(seen["cpu"] / args.sessions * 1000, 2),
        "seconds": round(seen["seconds"], 1),
    }


def twenty_turns(args: argparse.Namespace) -> dict[str, Any]:
    """The same with 20 turns each: minutes on cores that are free, and much more on others."""
    return in_flight(args, 20)


def flat(args: argparse.Namespace) -> dict[str, Any]:
    """Memory over many rollouts, 500 at a time, on a runtime in the client's process: no boto3, so it takes minutes."""
    with shared_memory() as folder:
        seen = client("", {"do": "batch", "rows": args.rollouts, "at_once": 500, "inside": True}, store=folder)
    sizes = [(number, kb) for number, kb in seen["sizes"] if number % (args.rollouts // 5) == 0]
    return {
        "rollouts": args.rollouts,
        "results": seen["results"],
        "once_each": seen["once_each"],
        "mb_after": {str(number): round(kb / 1000, 1) for number, kb in sizes},
        "bytes_each_after_a_fifth": round((sizes[-1][1] - sizes[1][1]) * 1000 / (sizes[-1][0] - sizes[1][0])),
        "seconds": round(seen["seconds"], 1),
    }


def flat_in_one_arena(args: argparse.Namespace) -> dict[str, Any]:
    """The same without malloc's arenas for threads, which reuse less of what others have freed."""
    os.environ["MALLOC_ARENA_MAX"] = "1"
    try:
        return flat(args) | {"arenas": 1}
    finally:
        del os.environ["MALLOC_ARENA_MAX"]


def latency(args: argparse.Namespace) -> dict[str, Any]:
    """From stored to in hand with 200 rollouts, against a bare reader in the same run."""
    figures: dict[str, Any] = {}
    with shared_memory() as folder, runtime(seconds=(2.0, 12.0)) as it:
        figures["directory"] = delays(it, client(it, {"do": "batch", "rows": 200, "at_once": 200}, store=folder))
    with shared_memory() as folder, runtime(seconds=(2.0, 12.0)) as it:
        figures["directory, floor"] = delays(
            it, client(it, {"do": "watch", "rows": 200, "folder": folder}, store=folder)
        )
    for name, do in (("SQS", "batch"), ("SQS, floor", "receive")):
        with runtime(seconds=(2.0, 12.0)) as it:
            job = {"do": do, "rows": 200, "at_once": 200, "queue": f"{it}/queue"}
            figures[name] = delays(it, client(it, job, queue=job["queue"]))
    return figures


def old_results(args: argparse.Namespace) -> dict[str, Any]:
    """60 rollouts in an experiment with 200,000 old results, and in one without, on S3 without a queue."""
    figures: dict[str, Any] = {}
    for old in (0, 200_000):
        with runtime(seconds=(3.0, 3.0), old=old) as it:
            seen = client(it, {"do": "batch", "rows": 60, "at_once": 60})
        requests = sum(count for name, count in seen["used"]["store_requests"].items() if name.startswith("s3:"))
        figures[f"{old} old"] = {"seconds": round(seen["seconds"], 1), "requests": requests, "results": seen["results"]}
    return figures


def quota(args: argparse.Namespace) -> dict[str, Any]:
    """25 requests a second, with sessions that take 5 s to start."""
    count = 500
    with runtime(seconds=(1e6, 1e6), tps=25, start_seconds=5.0) as it:
        client(it, {"do": "submit", "count": count}, arn=AWS_ARN)
        found = figures_of(it)
    at = found["invoked_at"]
    used = min(1.0, (len(at) - 1) / (at[-1] - at[0]) / 25)  # more where late slots at the start were made up for
    return {"submissions": count, "quota_used": round(used, 4), "throttles": found["counts"]["throttles"]}


def store_outage(args: argparse.Namespace) -> dict[str, Any]:
    """2,000 rollouts at once; their S3 refuses everything for 30 s in the middle."""
    with runtime(seconds=(20.0, 40.0)) as it:
        process = start_client(it, {"do": "batch", "rows": 2000, "at_once": 2000})
        wait_for(it, lambda found: found["counts"]["invokes"] >= 2000)
        wait_for(it, lambda found: len(found["stored"]) >= 200)
        ask(f"{it}/down?on=1")
        time.sleep(30)
        ask(f"{it}/down?on=0")
        back = time.time()
        seen = ended(process)
        counts = figures_of(it)["counts"]
    return {
        "rollouts": 2000,
        "results": seen["results"],
        "once_each": seen["once_each"],
        "sessions": counts["invokes"],
        "failed": seen["failed"],
        "seconds_until_all_were_in_hand": round(max(at for _, at in seen["seen"]) - back, 1),
    }


def killed(args: argparse.Namespace) -> dict[str, Any]:
    """2,000 rollouts; the client is killed when half of the results are there, and another resumes."""
    with runtime(seconds=(5.0, 30.0)) as it, shared_memory() as folder:
        process = start_client(it, {"do": "batch", "rows": 2000, "at_once": 2000}, store=folder)
        wait_for(it, lambda found: len(found["stored"]) >= 1000)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        began = time.monotonic()
        seen = client(it, {"do": "batch", "rows": 2000, "at_once": 2000, "resume": True}, store=folder)
        found = figures_of(it)
    return {
        "rollouts": 2000,
        "results": seen["results"],
        "once_each": seen["once_each"],
        "resumed": seen["resumed"],
        "sessions": found["counts"]["invokes"],
        "seconds_to_all": round(time.monotonic() - began, 1),
    }


def shared_queue(args: argparse.Namespace) -> dict[str, Any]:
    """Two clients with one experiment on one queue, 100 rollouts each."""
    with runtime(seconds=(2.0, 8.0)) as it:
        jobs = [{"do": "batch", "rows": 100, "at_once": 100, "from": 100 * n} for n in range(2)]
        seen = [ended(one) for one in [start_client(it, job, queue=f"{it}/queue") for job in jobs]]
        late = [delays(it, one) for one in seen]
    return {
        "results": [one["results"] for one in seen],
        "once_each": all(one["once_each"] for one in seen),
        "p50_ms": max(one["p50_ms"] for one in late),
        "p99_ms": max(one["p99_ms"] for one in late),
        "sqs_requests_each": round(sum(sqs_requests(one["used"]) for one in seen) / 200, 2),
    }


def requests(args: argparse.Namespace) -> dict[str, Any]:
    """What a rollout costs in requests, with a queue and without, 200 rollouts at a time."""
    figures: dict[str, Any] = {}
    for name, path in (("with SQS", "queue"), ("without", "")):
        with runtime(seconds=(5.0, 15.0)) as it:
            queue = f"{it}/{path}" if path else None
            used = client(it, {"do": "batch", "rows": 1000, "at_once": 200}, queue=queue)["used"]
        reads = sum(count for operation, count in used["store_requests"].items() if operation.startswith("s3:"))
        figures[name] = {
            "s3": round(reads / used["sessions"], 2),
            "sqs": round(sqs_requests(used) / used["sessions"], 2),
            "runtime": round((used["invokes"] + used["stops"]) / used["sessions"], 2),
        }
    return figures


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "quota": quota,
    "latency": latency,
    "old_results": old_results,
    "shared_queue": shared_queue,
    "requests": requests,
    "store_outage": store_outage,
    "killed": killed,
    "in_flight": in_flight,
    "twenty_turns": twenty_turns,
    "flat": flat,
    "flat_in_one_arena": flat_in_one_arena,
}


# --- what runs beside the clients ------------------------------------------------------------------------------------


@contextlib.contextmanager
def runtime(
    *,
    seconds: tuple[float, float],
    start_seconds: float = 0.0,
    tps: float | None = None,
    old: int = 0,
    turns: int = 0,
    gateway: str = "",
    admin_key: str = "",
) -> Iterator[str]:
    """The scripted runtime, its S3 and its queue; gives their address."""
    job = {"seconds": seconds, "start_seconds": start_seconds, "tps": tps, "old": old, "turns": turns}
    job |= {"gateway": gateway, "admin_key": admin_key, "bucket": BUCKET}
    command = [sys.executable, str(HERE.with_name("scale_runtime.py")), json.dumps(job)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment("")) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextlib.contextmanager
def gateway_process() -> Iterator[tuple[str, str, int]]:
    """A gateway with a scripted engine; gives its address, its admin key and its process id."""
    command = [sys.executable, str(HERE), "--role", "gateway"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            url, _, key = process.stdout.readline().strip().partition(" ")
            yield url, key, process.pid
        finally:
            process.terminate()


def serve_gateway() -> None:
    from agentcore_rl_toolkit.engine import tiny
    from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
    from agentcore_rl_toolkit.gateway.gateway import Gateway

    engine = ScriptedEngine(lambda request: [40, 41, 42, 43], chunk=16)
    with Gateway(engine, tokenizer=tiny.path(), admin_key="scale-admin-key-of-a-benchmark") as running:
        print(running.url, "scale-admin-key-of-a-benchmark", flush=True)
        while True:
            time.sleep(1)
            engine.requests.clear()


@contextlib.contextmanager
def shared_memory() -> Iterator[str]:
    """A folder that no disk slows down."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield folder


def environment(address: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    ours = {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "REGION": "us-east-1", "DEFAULT_REGION": "us-east-1"}
    ours |= {"ENDPOINT_URL_BEDROCK_AGENTCORE": address, "ENDPOINT_URL_S3": address, "ENDPOINT_URL_SQS": address}
    return kept | {f"AWS_{name}": value for name, value in ours.items() if value}


def ask(url: str) -> Any:
    with urlopen(Request(url), timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def figures_of(address: str) -> dict[str, Any]:
    return dict(ask(f"{address}/figures"))


def wait_for(address: str, holds: Callable[[dict[str, Any]], bool], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not holds(figures_of(address)):
        if time.monotonic() > deadline:
            raise SystemExit("nothing happens")
        time.sleep(0.5)


def delays(address: str, seen: dict[str, Any]) -> dict[str, Any]:
    from report import percentile

    stored = figures_of(address)["stored"]
    late = [(at - stored[key]) * 1000 for key, at in seen["seen"]]
    return {
        "results": len(late),
        "p50_ms": round(percentile(late, 0.5), 1),
        "p99_ms": round(percentile(late, 0.99), 1),
    }


def sqs_requests(used: dict[str, Any]) -> int:
    """The client's, and one message of each session."""
    sent = int(used["sessions"]) if any(name.startswith("sqs:") for name in used["store_requests"]) else 0
    return sent + sum(int(count) for name, count in used["store_requests"].items() if name.startswith("sqs:"))


# --- a client, in a separate process -------------------------------------------------------------------------------


def client(address: str, job: dict[str, Any], **where: Any) -> dict[str, Any]:
    return ended(start_client(address, job, **where))


def start_client(
    address: str,
    job: dict[str, Any],
    *,
    store: str = BUCKET,
    queue: str | None = None,
    arn: str = LOCAL_ARN,
) -> subprocess.Popen[str]:
    settings = {"agent_runtime_arn": arn, "s3_bucket": store, "exp_id": "exp"} | ({"sqs_url": queue} if queue else {})
    command = [sys.executable, str(HERE), "--role", json.dumps(job | {"client": settings})]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(address))


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate()
    if process.returncode or not out:
        raise SystemExit(f"a client failed with {process.returncode}")
    found: dict[str, Any] = json.loads(out)
    return found


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    from agentcore_rl_toolkit import RolloutClient

    if job["do"] in ("watch", "receive"):
        return bare_reader(job)
    instant = InstantRuntime(job["client"]["s3_bucket"]) if job.get("inside") else None
    job["client"] |= {"agent_runtime_arn": instant} if instant else {}
    with_client = RolloutClient(**job["client"])
    if job["do"] == "submit":
        import asyncio

        async def submit() -> None:
            await asyncio.gather(
                *(with_client.invoke_async({"n": n}, input_id=f"row-{n}") for n in range(job["count"]))
            )

        asyncio.run(submit())
        return {"submitted": job["count"]}
    return run_batch(with_client, job, instant)


class InstantRuntime:
    """A runtime in this process: a session stores its result before it has accepted, and leaves nothing behind.

    It waits for whoever reads the results, because a batch keeps those that nobody has read yet.
    """

    AHEAD = 1000

    def __init__(self, folder: str) -> None:
        from agentcore_rl_toolkit.store import open_store

        self.arn, self.folder, self.store = LOCAL_ARN, Path(folder), open_store(folder)
        self.keys: dict[str, str] = {}
        self.started = self.read = 0

    async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "application/json") -> Any:
        import asyncio

        from agentcore_rl_toolkit.runtime import Invocation
        from agentcore_rl_toolkit.types import RolloutId

        while self.started - self.read >= self.AHEAD:  # noqa: ASYNC110 - read on another thread
            await asyncio.sleep(0.2)
        self.started += 1
        asked = json.loads(payload)["_rollout"]
        key = self.keys[session_id] = RolloutId(asked["exp_id"], asked["input_id"], session_id).result_key
        body = {"status_code": 200, "stop_reason": "end_turn", "rewards": [1.0], "result_key": key}
        self.store.put_if_absent(key, json.dumps(body).encode())
        self.store.announce(key)

        async def answer() -> AsyncIterator[bytes]:
            yield json.dumps({"status": "processing", "result_key": key}).encode()

        return Invocation(session_id, 200, content_type, answer())

    async def stop(self, session_id: str) -> None:
        path = self.folder / self.keys.pop(session_id)
        path.unlink()
        path.parent.rmdir()

    async def aclose(self) -> None:
        """Holds nothing."""


def run_batch(with_client: Any, job: dict[str, Any], instant: InstantRuntime | None = None) -> dict[str, Any]:
    import threading

    first = job.get("from", 0)
    rows = [{"n": n} for n in range(first, first + job["rows"])]
    counts = bytearray(len(rows))  # does not grow while the client's memory is measured
    before, peak, over = memory_kb(), [0.0], threading.Event()

    def sample() -> None:
        while not over.wait(0.5):
            peak[0] = max(peak[0], memory_kb() - before)

    watching = threading.Thread(target=sample, daemon=True)
    watching.start()
    seen, sizes, failed, resumed = [], [], 0, 0
    cpu, began = time.process_time(), time.monotonic()
    every = max(1, len(rows) // 20)
    options = {"max_concurrent_sessions": job["at_once"], "timeout": 3600, "resume": job.get("resume", False)}
    for number, item in enumerate(with_client.run_batch(rows, **options)):
        if number % every == 0:
            sizes.append([number, memory_kb()])
        counts[item.index] += 1
        if instant is not None:
            instant.read += 1
        failed += not item.success
        resumed += item.resumed
        if item.result is not None and len(rows) <= 10_000:
            seen.append([item.result["result_key"], time.time()])
    found = {"seconds": time.monotonic() - began, "cpu": time.process_time() - cpu}
    over.set()
    watching.join()
    sizes.append([len(rows), memory_kb()])
    with_client.close()
    return found | {
        "seen": seen,
        "sizes": sizes,
        "results": sum(counts) - failed,
        "once_each": set(counts) == {1},
        "failed": failed,
        "resumed": resumed,
        "kb_at_most": peak[0],
        "used": with_client.usage.to_dict(),
    }


def bare_reader(job: dict[str, Any]) -> dict[str, Any]:
    """The least that brings results in: no client, only boto3, or a poll of files whose names are known."""
    wanted = set(bare_invokes(job))
    seen: list[list[Any]] = []
    if job["do"] == "watch":
        while wanted:
            for key in [key for key in wanted if os.path.exists(f"{job['folder']}/{key}")]:
                Path(job["folder"], key).read_bytes()
                seen.append([key, time.time()])
                wanted.discard(key)
            time.sleep(0.01)
        return {"seen": seen}
    import boto3

    sqs, s3 = boto3.client("sqs"), boto3.client("s3")
    while wanted:
        answer = sqs.receive_message(QueueUrl=job["queue"], MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in answer.get("Messages", []):
            key = json.loads(message["Body"])["Records"][0]["s3"]["object"]["key"]
            s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            seen.append([key, time.time()])
            wanted.discard(key)
            sqs.delete_message(QueueUrl=job["queue"], ReceiptHandle=message["ReceiptHandle"])
    return {"seen": seen}


def bare_invokes(job: dict[str, Any]) -> list[str]:
    """Start rollouts with boto3 alone; the keys of their results."""
    import uuid
    from concurrent.futures import ThreadPoolExecutor

    import boto3

    service, settings = boto3.client("bedrock-agentcore"), job["client"]

    def invoke(n: int) -> str:
        session, ours = str(uuid.uuid4()), {"exp_id": "exp", "input_id": f"row-{n}", "s3_bucket": settings["s3_bucket"]}
        body = {"_rollout": ours | ({"sqs_url": job["queue"]} if "queue" in job else {})}
        arn = settings["agent_runtime_arn"]
        answer = service.invoke_agent_runtime(
            agentRuntimeArn=arn, runtimeSessionId=session, payload=json.dumps(body).encode()
        )
        return str(json.loads(answer["response"].read())["result_key"])

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(invoke, range(job["rows"])))


def memory_kb() -> float:
    with contextlib.suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1000
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--role"]:
        if sys.argv[2] == "gateway":
            serve_gateway()
        else:
            print(json.dumps(run_job(json.loads(sys.argv[2]))), flush=True)
            os._exit(0)  # rollouts that never end need no goodbye
    main()
