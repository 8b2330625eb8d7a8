"""The other side of `scale_client.py`: a runtime on AWS's wire whose sessions only wait or call the gateway, with an S3
that can be taken away and an SQS queue, both in memory.

Reads a job (JSON) from its argument, prints its address, and serves until it is terminated. `GET /figures` says what
sessions did; `POST /down?on=1` takes the S3 away.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import hashlib
import json
import random
import sys
import time
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

import aiohttp
from aiohttp import web

from agentcore_rl_toolkit.store import open_store
from agentcore_rl_toolkit.store.retry import retry
from agentcore_rl_toolkit.types import RolloutId

SESSION = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
PAGE = 1000


class Queue:
    """One SQS queue: messages, each with the time from which it is visible."""

    def __init__(self) -> None:
        self.messages: dict[str, tuple[float, str, int]] = {}
        self.sent = asyncio.Event()
        self.number = 0

    def send(self, body: str) -> None:
        self.number += 1
        self.messages[str(self.number)] = (0.0, body, 0)
        self.sent.set()

    async def answer(self, request: web.Request) -> web.Response:
        job = json.loads(await request.read())
        entries = job.get("Entries", [])
        match request.headers["X-Amz-Target"].partition(".")[2]:
            case "ReceiveMessage":
                return web.json_response({"Messages": await self.receive(job.get("WaitTimeSeconds", 0))})
            case "DeleteMessage":
                self.messages.pop(job["ReceiptHandle"], None)
            case "DeleteMessageBatch":
                for entry in entries:
                    self.messages.pop(entry["ReceiptHandle"], None)
            case "ChangeMessageVisibilityBatch":
                for entry in entries:
                    _, body, count = self.messages[entry["ReceiptHandle"]]
                    visible = time.monotonic() + entry["VisibilityTimeout"]
                    self.messages[entry["ReceiptHandle"]] = (visible, body, count)
                self.sent.set()
        return web.json_response({"Successful": [{"Id": entry["Id"]} for entry in entries], "Failed": []})

    async def receive(self, seconds: float) -> list[dict[str, Any]]:
        deadline = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            found = [handle for handle, (at, _, _) in self.messages.items() if at <= now][:10]
            if found or now >= deadline:
                return [self.hand_out(handle, now) for handle in found]
            self.sent.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.sent.wait(), min(deadline - now, 0.5))

    def hand_out(self, handle: str, now: float) -> dict[str, Any]:
        _, body, count = self.messages[handle]
        self.messages[handle] = (now + 30, body, count + 1)
        known = {"ApproximateReceiveCount": str(count + 1), "SentTimestamp": str(int(time.time() * 1000))}
        digest = hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()
        return {"MessageId": handle, "ReceiptHandle": handle, "Body": body, "MD5OfBody": digest, "Attributes": known}


class Site:
    """The runtime, the S3 and the queue."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.objects: dict[str, bytes] = {f"{job['bucket']}/exp/{n:06}-old/s.json": b"{}" for n in range(job["old"])}
        self.names = sorted(self.objects)
        self.down = False
        self.tokens, self.at = float(job["tps"] or 0), time.monotonic()
        self.dice = random.Random(1)
        self.sessions: dict[str, asyncio.Task[None]] = {}
        self.stored: dict[str, float] = {}
        self.counts = {"invokes": 0, "throttles": 0, "stops": 0, "most": 0, "calls": 0, "repeated": 0, "s3": 0}
        self.invoked_at: list[float] = []
        self.stores: dict[str, Any] = {}
        self.queue = Queue()
        self.http: aiohttp.ClientSession

    async def handle(self, request: web.Request) -> web.Response:
        path = request.raw_path.partition("?")[0]
        if path == "/figures":
            figures = {"stored": self.stored, "counts": self.counts, "running": len(self.sessions)}
            return web.json_response(figures | {"invoked_at": self.invoked_at, "cpu": time.process_time()})
        if path == "/down":
            self.down = request.query["on"] == "1"
            return web.Response()
        if path.startswith("/runtimes/"):
            return await self.call(request, path)
        if "X-Amz-Target" in request.headers:
            return await self.queue.answer(request)
        self.counts["s3"] += 1
        return await self.s3(request, unquote(path[1:]))

    # --- the runtime -----------------------------------------------------------------------------------------------

    async def call(self, request: web.Request, path: str) -> web.Response:
        session = request.headers[SESSION]
        if self.throttled():
            self.counts["throttles"] += 1
            headers = {"x-amzn-ErrorType": "ThrottlingException"}
            return web.json_response({"message": "slow down"}, status=429, headers=headers)
        if path.endswith("/stopruntimesession"):
            self.counts["stops"] += 1
            if (task := self.sessions.get(session)) is not None:
                task.cancel()
            return web.json_response({})
        self.counts["invokes"] += 1
        self.invoked_at.append(time.monotonic())
        settings = json.loads(await request.read())["_rollout"]
        await asyncio.sleep(self.job["start_seconds"])
        key = RolloutId(settings["exp_id"], settings["input_id"], session).result_key
        if session in self.sessions or key in self.stored:
            self.counts["repeated"] += 1
        else:
            self.sessions[session] = asyncio.get_running_loop().create_task(self.run(session, key, settings))
            self.sessions[session].add_done_callback(lambda _: self.sessions.pop(session, None))
            self.counts["most"] = max(self.counts["most"], len(self.sessions))
        return web.json_response({"status": "processing", "s3_bucket": settings["s3_bucket"], "result_key": key})

    def throttled(self) -> bool:
        tps = self.job["tps"]
        if tps is None:
            return False
        now = time.monotonic()
        self.tokens, self.at = min(tps, self.tokens + (now - self.at) * tps), now
        if self.tokens < 1:
            return True
        self.tokens -= 1
        return False

    async def run(self, session: str, key: str, settings: dict[str, Any]) -> None:
        """One session: it waits, or calls the gateway so many times in that time; then it stores its result."""
        low, high = self.job["seconds"]
        seconds = low + (high - low) * self.dice.random()
        turns = self.job["turns"]
        if turns:
            await self.converse(session, turns, seconds)
        else:
            await asyncio.sleep(seconds)
        body = json.dumps({"status_code": 200, "stop_reason": "end_turn", "rewards": [1.0], "result_key": key}).encode()
        bucket = settings["s3_bucket"]
        if bucket.startswith("/"):
            await asyncio.to_thread(self.store_and_announce, key, body, bucket)
            return
        while self.down:  # noqa: ASYNC110 - a session's own retries
            await asyncio.sleep(0.5 * self.dice.random() + 0.1)
        self.keep(f"{bucket}/{key}", body)
        self.stored[key] = time.time()
        if settings.get("sqs_url"):
            record = {"s3": {"bucket": {"name": bucket}, "object": {"key": key}}}
            self.queue.send(json.dumps({"Records": [record]}))

    def store_and_announce(self, key: str, body: bytes, folder: str) -> None:
        store = self.stores.setdefault(folder, open_store(folder))
        retry(lambda: store.put_if_absent(key, body), seconds=60)
        self.stored[key] = time.time()
        store.announce(key)

    async def converse(self, session: str, turns: int, seconds: float) -> None:
        """A conversation through the gateway, a turn after the other."""
        admin = {"Authorization": f"Bearer {self.job['admin_key']}"}
        async with self.http.post(f"{self.job['gateway']}/sessions", json={"session_id": session}, headers=admin) as it:
            base_url = (await it.json())["base_url"]
        messages = [{"role": "user", "content": "hello"}]
        for _ in range(turns):
            body = {"model": "scripted", "messages": messages}
            async with self.http.post(f"{base_url}/chat/completions", json=body) as answer:
                if answer.status != 200:
                    raise SystemExit(f"the gateway answered {await answer.text()}")
                reply = (await answer.json())["choices"][0]["message"]
            self.counts["calls"] += 1
            messages += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "go on"}]
            await asyncio.sleep(seconds / turns)
        await self.http.delete(f"{self.job['gateway']}/sessions/{session}", headers=admin)

    # --- the S3 ----------------------------------------------------------------------------------------------------

    def keep(self, name: str, body: bytes) -> None:
        if name not in self.objects:
            self.objects[name] = body
            bisect.insort(self.names, name)

    async def s3(self, request: web.Request, name: str) -> web.Response:
        if self.down:
            return web.Response(status=503, text="<Error><Code>SlowDown</Code></Error>")
        if "list-type" in request.query:
            return self.listing(name.rstrip("/"), request.query)
        if request.method == "PUT":
            self.keep(name, await request.read())
            return web.Response()
        if name not in self.objects:
            return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>")
        return web.Response(body=self.objects[name] if request.method == "GET" else b"")

    def listing(self, bucket: str, query: Any) -> web.Response:
        after = query.get("continuation-token") or query.get("start-after", "")
        prefix, size = f"{bucket}/{query.get('prefix', '')}", int(query.get("max-keys", PAGE))
        begin = max(bisect.bisect_left(self.names, prefix), bisect.bisect_right(self.names, f"{bucket}/{after}"))
        found = [name for name in self.names[begin : begin + size + 1] if name.startswith(prefix)]
        keys = [name.removeprefix(f"{bucket}/") for name in found[:size]]
        more = len(found) > size
        rows = "".join(f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in keys)
        token = f"<NextContinuationToken>{escape(keys[-1])}</NextContinuationToken>" if more else ""
        head = f"<Name>{bucket}</Name><KeyCount>{len(keys)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
        return web.Response(text=f"<ListBucketResult>{head}{token}{rows}</ListBucketResult>")


async def serve(job: dict[str, Any]) -> None:
    site = Site(job)
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", site.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=256)) as site.http:
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
