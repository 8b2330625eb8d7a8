"""Agents that call a gateway, turn after turn, for `scale_gateway.py`: a separate process.

It reads from stdin the base URLs of their sessions, and then the seconds to run and the seconds that each agent waits
between two calls. It writes the number of calls and the seconds they took.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time

import aiohttp

TURNS = 20


async def _agents(urls: list[str], seconds: float, pause: float) -> tuple[int, float]:
    began = time.perf_counter()
    calls = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def agent(url: str) -> None:
            nonlocal calls
            await asyncio.sleep(pause * random.random())
            while time.perf_counter() - began < seconds:
                messages: list[dict[str, str]] = []
                for turn in range(TURNS):
                    messages.append({"role": "user", "content": f"Look at the result of turn {turn}, and go on."})
                    body = {"model": "scripted", "messages": messages}
                    async with http.post(f"{url}/chat/completions", json=body) as answer:
                        said = await answer.json()
                    calls += 1
                    await asyncio.sleep(pause)
                    if time.perf_counter() - began >= seconds:
                        return
                    messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"]})

        await asyncio.gather(*(agent(url) for url in urls))
    return calls, time.perf_counter() - began


def main() -> None:
    urls, (seconds, pause) = json.loads(sys.stdin.readline()), json.loads(sys.stdin.readline())
    print(json.dumps(asyncio.run(_agents(urls, seconds, pause))), flush=True)


if __name__ == "__main__":
    main()
