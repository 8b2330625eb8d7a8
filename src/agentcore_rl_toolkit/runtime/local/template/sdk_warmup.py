"""A model call that goes nowhere, with each SDK that the agent has imported: it tells what such a call imports.

SDKs import most of themselves on their first call, which costs a session half a second of work. This runs in a
throwaway fork; what it imported is then imported once, in the template. An SDK that can't be rehearsed is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

_NOWHERE = "http://127.0.0.1:9"  # the port for discarding: nobody listens, and the network is closed besides


async def rehearse_sdks() -> None:
    """Call a model with every SDK that is loaded; each fails, as nobody answers."""
    for name, call in _CALLS.items():
        if name in sys.modules:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(call(), 5)


async def _openai() -> None:
    import httpx
    import openai

    answers = iter([_OPENAI_STREAM, _OPENAI_WHOLE, _OPENAI_RESPONSE])

    def answer(request: httpx.Request) -> httpx.Response:
        kind, body = next(answers)
        return httpx.Response(200, headers={"content-type": kind}, content=body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        client = openai.AsyncOpenAI(api_key="EMPTY", base_url=_NOWHERE, http_client=http, max_retries=0)
        messages: Any = [{"role": "user", "content": "hi"}]
        async for _ in await client.chat.completions.create(model="m", messages=messages, stream=True):
            pass
        await client.chat.completions.create(model="m", messages=messages)
        await client.responses.create(model="m", input="hi")
    plain = openai.AsyncOpenAI(api_key="EMPTY", base_url=_NOWHERE, max_retries=0, timeout=1)
    with contextlib.suppress(openai.APIError):
        await plain.models.list()
    await plain.close()


async def _anthropic() -> None:
    import anthropic

    client = anthropic.AsyncAnthropic(api_key="EMPTY", base_url=_NOWHERE, max_retries=0, timeout=1)
    with contextlib.suppress(anthropic.APIError):
        await client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
    await client.close()


async def _boto3() -> None:
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "bedrock-runtime",
        endpoint_url=_NOWHERE,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(retries={"max_attempts": 0}, connect_timeout=1),
    )
    with contextlib.suppress(Exception):
        client.converse(modelId="m", messages=[{"role": "user", "content": [{"text": "hi"}]}])


async def _google() -> None:
    from google import genai

    client = genai.Client(api_key="EMPTY", vertexai=False, http_options={"base_url": _NOWHERE, "timeout": 1000})
    with contextlib.suppress(Exception):
        client.models.generate_content(model="m", contents="hi")  # the async client would wait and try again
    client.close()


_CALLS: dict[str, Callable[[], Awaitable[None]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "google.genai": _google,
    "strands.models.bedrock": _boto3,
}
_HEAD = b'{"id":"x","created":1,"model":"m","object":"chat.completion'
_OPENAI_STREAM = (
    "text/event-stream",
    b"data: " + _HEAD + b'.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"a"},'
    b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
)
_OPENAI_WHOLE = (
    "application/json",
    _HEAD + b'","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}',
)
_OPENAI_RESPONSE = ("application/json", b'{"id":"x","object":"response","created_at":1,"model":"m","output":[]}')
