"""The load on a gateway: one process, many kept-alive connections, requests made of ready bytes.

A job comes as JSON on stdin, its figures go as JSON to stdout. It reads the gateway's CPU time and memory from `/proc`
itself, at the very start and end of what it measures. It never looks into an answer further than its status and end.
"""

from __future__ import annotations

import asyncio
import json
import os
import pydoc_data.topics
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvloop
from gateway_parts import ADMIN_KEY, MODEL
from report import percentile

GROUP = 8
TURNS = 20


class Connection(asyncio.Protocol):
    """One client connection: a request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.answered: asyncio.Future[int] | None = None
        self.kept: list[bytes] = []
        self.keep = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        if self.answered and not self.answered.done():
            self.answered.set_result(0)

    def ask(self, request: list[bytes]) -> asyncio.Future[int]:
        """Send; the future gives the status once the whole answer is in, 0 for none."""
        self.answered = asyncio.get_running_loop().create_future()
        self.head, self.left, self.status, self.tail = b"", -1, 0, b""
        self.kept.clear()
        self.sent = self.last = time.perf_counter()
        self.first = self.gap = 0.0
        if self.transport.is_closing():
            self.answered.set_result(0)
        else:
            self.transport.writelines(request)
        return self.answered

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self.status:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self.head[:end].lower(), self.head[end + 4 :]
            self.status = int(head[9:12])
            at = head.find(b"content-length:")
            self.left = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else -1
            self.first = now
        elif now - self.last > self.gap:
            self.gap = now - self.last
        self.last = now
        if self.keep:
            self.kept.append(data)
        if self.left >= 0:
            self.left -= len(data)
            done = self.left <= 0
        else:
            self.tail = (self.tail + data)[-7:] if len(data) < 7 else data[-7:]
            done = self.tail.endswith(b"\n0\r\n\r\n")
        if done and self.answered and not self.answered.done():
            self.answered.set_result(self.status)


class Prompts:
    """Message lists as bytes. The text is Python's own documentation in pieces, never twice in the same order."""

    def __init__(self, text: str, bytes_per_token: float, seed: int) -> None:
        pieces = [p for t in pydoc_data.topics.topics.values() for p in t.split("\n\n") if 20 < len(p) < 1500]
        self.pieces = [json.dumps(piece + "\n\n")[1:-1].encode() for piece in pieces]
        self.ratio = bytes_per_token
        self.dice = random.Random(seed)
        self.echo = b',{"role":"assistant","content":%s}' % json.dumps(text).encode()

    def first(self, tokens: int) -> bytes:
        return b'{"role":"user","content":"%s"}' % self.text(tokens)

    def more(self) -> bytes:
        """What follows a turn: the answer echoed, and a short message."""
        return self.echo + b',{"role":"user","content":"%s"}' % self.text(32)

    def text(self, tokens: int) -> bytes:
        wanted, parts = int(tokens * self.ratio), [b"%08d: " % self.dice.randrange(10**8)]
        while wanted > 0:
            piece = self.dice.choice(self.pieces)
            if len(piece) > wanted:  # cut between words, so that no escape is cut
                piece = piece[: max(piece.rfind(b" ", 0, wanted), 0)] or b"end."
                wanted = 0
            wanted -= len(piece)
            parts.append(piece)
        return b"".join(parts)


class Load:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.port, self.pid = job["port"], job["pid"]
        self.prompts = Prompts(job["text"], job["bytes_per_token"], job.get("seed", 1))
        self.kind: str = job["name"].split("-")[0]
        self.sessions: list[list[str]] = []
        self.taken = 0
        self.latencies: list[float] = []
        self.firsts: list[float] = []
        self.gaps: list[float] = []
        self.errors: dict[str, int] = {}
        self.open = False
        """Whether what ends now counts."""
        self.over = False
        self.allowed = job.get("count", sys.maxsize)
        """How many more requests may be sent."""

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Connection, "127.0.0.1", self.port))[1]

    # --- requests --------------------------------------------------------------------------------------------------

    def request(self, session: list[str], messages: list[bytes]) -> list[bytes]:
        tail = b'],"stream":true}' if self.job["stream"] else b"]}"
        head = b'{"model":"%s","max_tokens":256,"temperature":1.0,"messages":[' % MODEL.encode()
        length = len(head) + sum(map(len, messages)) + len(tail)
        line = f"POST {session[0]} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{session[1]}\r\n"
        return [line.encode() + b"content-length: %d\r\n\r\n" % length, head, *messages, tail]

    def take(self) -> list[str] | None:
        """The next session: path, header line, id. Only ours has to make them first; None when those are used up."""
        if self.kind == "ours":
            return self.sessions.pop() if self.sessions else None
        self.taken += 1
        name = f"s{os.getpid()}-{self.taken}"
        if self.kind == "rllm":
            return [f"/sessions/{name}/v1/chat/completions", "x: y", name]
        return ["/v1/chat/completions", f"authorization: Bearer {name}", name]

    async def make_sessions(self, count: int) -> float:
        """Make sessions where the gateway wants it; gives the gateway's CPU milliseconds for each."""
        if self.kind != "ours":
            return 0.0
        names = [f"s{os.getpid()}-{n}" for n in range(count)]
        before, left = cpu(self.pid), iter(names)

        async def make() -> None:
            connection = await self.connect()
            connection.keep = True
            for name in left:
                body = json.dumps({"session_id": name}).encode()
                head = f"POST /sessions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN_KEY}\r\n"
                head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                status = await connection.ask([head.encode(), body])
                if status not in (200, 201):
                    raise SystemExit(f"POST /sessions: {status} {b''.join(connection.kept)[:300]!r}")
                path = json.loads(b"".join(connection.kept))["base_url"].split("/", 3)[3]
                self.sessions.append([f"/{path}/chat/completions", "x: y", name])
            connection.transport.close()

        await asyncio.gather(*(make() for _ in range(16)))
        return (cpu(self.pid) - before) * 1000 / count

    def work(self) -> Iterator[list[bytes]]:
        """Endless requests for one connection, until there are no sessions left."""
        kind, tokens, prompt, uses = self.job["kind"], self.job["tokens"], b"", 0
        while session := self.take():
            if kind == "turns":
                messages = [self.prompts.first(tokens)]
                for _ in range(self.job.get("turns", TURNS)):
                    yield self.request(session, messages)
                    messages.append(self.prompts.more())
                continue
            if uses == 0:
                prompt, uses = self.prompts.first(tokens), GROUP if kind == "group" else 1
            uses -= 1
            yield self.request(session, [prompt])

    async def one(self, connection: Connection, request: list[bytes]) -> Connection:
        status = await connection.ask(request)
        if status != 200:
            self.errors[str(status)] = self.errors.get(str(status), 0) + 1
            if connection.transport.is_closing():
                connection = await self.connect()
        elif self.open:
            self.latencies.append((connection.last - connection.sent) * 1000)
            self.firsts.append((connection.first - connection.sent) * 1000)
            self.gaps.append(connection.gap * 1000)
        return connection

    async def client(self, wait: float) -> None:
        await asyncio.sleep(wait)
        connection = await self.connect()
        for request in self.work():
            self.allowed -= 1
            if self.over or self.allowed < 0:
                break
            connection = await self.one(connection, request)
        connection.transport.close()

    # --- jobs ------------------------------------------------------------------------------------------------------

    async def flood(self) -> dict[str, Any]:
        """So many at once for so long, after a warm-up of which nothing counts."""
        job = self.job
        made = await self.make_sessions(job["sessions"])
        ramp = job.get("ramp", 0.0)
        clients = [asyncio.create_task(self.client(ramp * n / job["concurrency"])) for n in range(job["concurrency"])]
        await asyncio.sleep(job["warm"] + ramp)
        begun, used = time.perf_counter(), cpu(self.pid)
        self.open = True
        await asyncio.wait(clients, timeout=job["seconds"])
        self.open = False
        seconds, used = time.perf_counter() - begun, cpu(self.pid) - used
        figures = self.figures(seconds, used) | {"session_cpu_ms": made, "exhausted": seconds < job["seconds"] - 0.1}
        self.over = True
        await asyncio.wait(clients, timeout=30)
        return figures

    async def memory(self) -> dict[str, Any]:
        """What is kept of a turn: sessions of 20 turns, memory before and after."""
        self.job["kind"] = "turns"
        warm, measured = 8, self.job["sessions"]
        await self.make_sessions(warm + measured + 8)
        await self.some_turns(warm * TURNS)  # what is cached once is not kept of a turn
        before, self.open = memory(self.pid), True
        await self.some_turns(measured * TURNS)
        after, turns = memory(self.pid), len(self.latencies)
        return {"turns": turns, "bytes_per_turn": (after - before) / max(1, turns), "errors": self.errors}

    async def some_turns(self, count: int) -> None:
        self.allowed = count
        await asyncio.gather(*(self.client(0) for _ in range(4)))
        await asyncio.sleep(1)

    async def turn_cost(self) -> dict[str, Any]:
        """All sessions take turn n together, and so on: CPU per request of early and late turns."""
        job, width = self.job, self.job["concurrency"]
        await self.make_sessions(width)
        sessions = [self.take() or [] for _ in range(width)]
        connections = [await self.connect() for _ in range(width)]
        histories = [[self.prompts.first(job["tokens"])] for _ in range(width)]
        marks, sizes = [cpu(self.pid)], []
        for _ in range(job["turns"]):
            requests = [self.request(s, h) for s, h in zip(sessions, histories, strict=True)]
            sizes.append(sum(map(len, requests[0])))
            connections = list(await asyncio.gather(*map(self.one, connections, requests)))
            for history in histories:
                history.append(self.prompts.more())
            marks.append(cpu(self.pid))
        span = min(5, job["turns"] // 3)

        def cost(start: int) -> dict[str, float]:
            spent = (marks[start + span] - marks[start]) * 1000 / (span * width)
            return {"cpu_ms": spent, "request_bytes": sizes[start + span // 2]}

        return {"early": cost(1), "late": cost(job["turns"] - span), "turns": job["turns"], "errors": self.errors}

    async def read(self) -> dict[str, Any]:
        """A light load, and beside it long sessions are read, one after the other: does anybody wait?"""
        job = self.job | {"kind": "different"}
        self.job = job
        await self.make_sessions(job["sessions"])
        long = [self.take() or [] for _ in range(job["reads"])]
        await asyncio.gather(*(self.long_session(session) for session in long))
        clients = [asyncio.create_task(self.client(0.01 * n)) for n in range(job["concurrency"])]
        await asyncio.sleep(1)
        self.open = True
        await asyncio.sleep(job["seconds"])
        quiet, self.latencies = self.latencies, []
        reader = await self.connect()
        reads, size = [], 0
        reader.keep = True
        for session in long:
            head = f"{job['read'][0]} {job['read'][1].format(session[2])} HTTP/1.1\r\nhost: localhost\r\n"
            head += f"authorization: Bearer {ADMIN_KEY}\r\ncontent-length: 0\r\n\r\n"
            status = await reader.ask([head.encode()])
            size = sum(map(len, reader.kept))
            reads.append((reader.last - reader.sent) * 1000)
            if status != 200:
                self.errors[f"read {status}"] = self.errors.get(f"read {status}", 0) + 1
            await asyncio.sleep(0.3)
        self.open, self.over = False, True
        await asyncio.wait(clients, timeout=30)
        if not quiet or not self.latencies:
            return {"requests": 0, "errors": self.errors}
        return {
            "quiet_p99_ms": percentile(quiet, 0.99),
            "quiet_max_ms": max(quiet),
            "reading_p99_ms": percentile(self.latencies, 0.99),
            "reading_max_ms": max(self.latencies),
            "read_ms": percentile(reads, 0.5),
            "read_megabytes": size / 1e6,
            "errors": self.errors,
        }

    async def long_session(self, session: list[str]) -> None:
        connection, messages = await self.connect(), [self.prompts.first(self.job["long_tokens"])]
        for _ in range(self.job["long"]):
            connection = await self.one(connection, self.request(session, messages))
            messages.append(self.prompts.more())
        connection.transport.close()

    def figures(self, seconds: float, used: float) -> dict[str, Any]:
        count = len(self.latencies)
        if not count:
            return {"requests": 0, "errors": self.errors}
        return {
            "requests": count,
            "per_second": count / seconds,
            "cpu_ms": used * 1000 / count,
            "cores": used / seconds,
            "p50_ms": percentile(self.latencies, 0.5),
            "p99_ms": percentile(self.latencies, 0.99),
            "max_ms": max(self.latencies),
            "first_p50_ms": percentile(self.firsts, 0.5),
            "gap_p99_ms": percentile(self.gaps, 0.99),
            "memory_mb": memory(self.pid) / 1e6,
            "errors": self.errors,
        }


# --- /proc ---------------------------------------------------------------------------------------------------------


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def cpu(pid: int) -> float:
    """CPU seconds so far, of the process and all below it. `/proc` would count them in hundredths."""
    clocks = (~one << 3 | 2 for one in (family(pid) if pid else ()))  # as clock_getcpuclockid(3) makes them
    return sum(map(time.clock_gettime, clocks))


def memory(pid: int) -> int:
    """Proportional set size in bytes, of the process and all below it."""
    lines = (line for one in (family(pid) if pid else ()) for line in rollup(one))
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def rollup(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()


def main() -> None:
    job = json.loads(sys.stdin.read())
    load = Load(job)
    do: Callable[[], Any] = getattr(load, job["do"])
    print(json.dumps(uvloop.run(do())))


if __name__ == "__main__":
    main()
