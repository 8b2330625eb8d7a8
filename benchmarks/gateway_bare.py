"""What a request's own bytes cost: a server that does nothing but read them, on the gateway's own HTTP stack.

`read`: read a request, parse it, hash it, and answer. `forward`: also send the engine as many token ids as the
request has, ready as bytes, and read its answer. Arguments: port, engine's URL, mode.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.request import urlopen

import orjson
import uvloop
from aiohttp import web
from xxhash import xxh3_128

from agentcore_rl_toolkit.engine.remote.http_client import HttpClient

IDS = b",".join(b"%d" % n for n in range(10_000, 100_000))
ID_BYTES = 6  # with the comma


class Bare:
    def __init__(self, url: str, forwards: bool) -> None:
        with urlopen(f"{url}/text", timeout=30) as response:
            about: dict[str, Any] = json.loads(response.read())
        message = {"role": "assistant", "content": about["text"]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        self.body = orjson.dumps({"id": "chatcmpl-0", "object": "chat.completion", "created": 1, "choices": [choice]})
        self.tokens_per_byte = 1 / about["bytes"]
        self.engine = HttpClient(url) if forwards else None

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.read()
        orjson.loads(raw)
        xxh3_128(raw).digest()
        if self.engine is not None:
            ids = IDS[: int(len(raw) * self.tokens_per_byte) * ID_BYTES - 1]
            rest = b'],"max_tokens":256,"return_token_ids":true,"stream":false}'
            with await self.engine.post("/v1/completions", b'{"prompt":[', ids, rest) as answer:
                await answer.read()
        return web.Response(body=self.body, content_type="application/json")


async def serve(port: int, bare: Bare) -> None:
    runner = web.ServerRunner(web.Server(bare.handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Bare(sys.argv[2], sys.argv[3] == "forward")))
