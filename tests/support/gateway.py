"""A gateway over a scripted engine, what its model says as token ids, and an engine that goes on when it is told to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx
import openai

from agentcore_rl_toolkit.engine.base import EngineInfo, Sampled, SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.gateway.call.core import GatewayLimits
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.render.tokenizer import Tokenizer
from support.tokenizers import make_tokenizer

MODEL = "scripted"
KEEPS_ALIVE = GatewayLimits(keep_alive_seconds=0.01)
"""A stream whose engine is silent sends keep-alives at once."""
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@cache
def tokenizer() -> Any:
    return make_tokenizer()


@cache
def gateway_tokenizer() -> Tokenizer:
    """The tokenizer as a gateway uses it: every gateway would otherwise compare it with `fastokens` again."""
    return Tokenizer(tokenizer())


def ids(text: str, *, end: bool = True) -> list[int]:
    """What the model samples to say `text`."""
    return list(tokenizer().encode(text + ("<|im_end|>" if end else ""), add_special_tokens=False))


def call_text(name: str, **arguments: Any) -> str:
    """A tool call as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def text_of(token_ids: Any) -> str:
    return str(tokenizer().decode(list(token_ids)))


@contextmanager
def gateway(engine: Any, **settings: Any) -> Iterator[Gateway]:
    """A running gateway; a list is what its engine says, one answer after the other."""
    with Gateway(
        engine if hasattr(engine, "sample") else ScriptedEngine(engine), tokenizer=gateway_tokenizer(), **settings
    ) as running:
        try:
            yield running
        finally:
            while _clients:
                _clients.pop().close()


_clients: list[openai.OpenAI] = []


def client(session: dict[str, Any], **settings: Any) -> openai.OpenAI:
    """The real SDK; it doesn't try again unless asked to. Closed with the gateway."""
    known = {"base_url": session["base_url"], "api_key": "EMPTY", "max_retries": 0, "timeout": 30}
    _clients.append(openai.OpenAI(**known | settings))
    return _clients[-1]


class Control:
    """The control API over HTTP."""

    def __init__(self, running: Gateway, key: str | None = None) -> None:
        self.url = running.url
        self._headers = {"Authorization": f"Bearer {key if key is not None else running.admin_key}"}

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = self._headers | more.pop("headers", {})
        return httpx.request(method, path if "://" in path else self.url + path, headers=headers, timeout=30, **more)

    def turns(self, session: dict[str, Any]) -> list[dict[str, Any]]:
        response = self("GET", f"/sessions/{session['session_id']}/turns")
        response.raise_for_status()
        turns: list[dict[str, Any]] = response.json()["turns"]
        return turns


class Gated:
    """An engine that gives a chunk for each `let`: a test decides what has happened before what."""

    def __init__(self, inner: ScriptedEngine) -> None:
        self.inner = inner
        self._permits: asyncio.Semaphore = asyncio.Semaphore(0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.asked = threading.Semaphore(0)
        """Released once for each request that has reached the engine."""
        self.taken = threading.Semaphore(0)
        """Released once for each chunk that the gateway is done with, the last of a request excepted."""
        self.ended = threading.Semaphore(0)
        """Released once for each request that is over, whichever way."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Sampled]:
        chunks = self.inner.sample(request)
        self.asked.release()
        try:
            await self._permits.acquire()
            async for chunk in chunks:
                yield chunk
                if chunk.finish is None:
                    self.taken.release()
                    await self._permits.acquire()
        finally:
            if request not in self.inner.requests:  # given up before the first chunk
                self.inner.requests.append(request)
                self.inner.aborted.append(request)
            await chunks.aclose()  # type: ignore[attr-defined]
            self.ended.release()

    def let(self, chunks: int = 1) -> None:
        """Let the engine give so many more chunks."""
        assert self._loop is not None
        for _ in range(chunks):
            self._loop.call_soon_threadsafe(self._permits.release)

    def wait(self, what: threading.Semaphore, times: int = 1) -> None:
        for _ in range(times):
            assert what.acquire(timeout=30)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def info(self) -> EngineInfo:
        return await self.inner.info()

    async def pause(self) -> None:
        await self.inner.pause()

    async def resume(self) -> None:
        await self.inner.resume()

    async def close(self) -> None:
        await self.inner.close()


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something that another thread does."""
    waited = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it did not happen")


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start `work` on a thread; call what it gives to wait for the outcome."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> Any:
        thread.join(30)
        assert not thread.is_alive()
        if "error" in outcome:
            raise outcome["error"]
        return outcome["value"]

    return join
