"""A stub engine that answers at once, as vLLM does, from bytes made beforehand: it must never be what is measured.

Token ids in (`/v1/completions`, `/inference/v1/generate`) or messages (`/v1/chat/completions`), streamed or not, with
logprobs, the sampled ids and, as vLLM does, the prompt's ids. Every call samples the same 256 tokens of plain text.
It renders nothing: the prompt ids of a chat are any ids, as many as the text would have. `GET /mode?delay=2` makes
every call take 2 s, `/mode?rate=50` makes streams come at 50 tokens a second. Arguments: port, tokenizer, tokens.
"""

from __future__ import annotations

import asyncio
import json
import pydoc_data.topics
import random
import re
import struct
import sys
from itertools import accumulate
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import tokenizers
import uvloop

PHASES = 4
"""Streams tick in this many groups, as those of as many replicas would."""
HEAD = b"HTTP/1.1 200 OK\r\nserver: stub\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: stub\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
PROMPT, USED, TOTAL = b"@PROMPT@", b"@USED@", b"@TOTAL@"
"""Where a body takes the prompt's ids, their number, and that of all tokens."""


class Answers:
    """All the bytes there are, by endpoint."""

    def __init__(self, folder: str, count: int) -> None:
        tokenizer: Any = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
        source = "\n\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
        ids = tokenizer.encode(source, add_special_tokens=False).ids
        self.bytes_per_token = len(json.dumps(source)) / len(ids)
        words = [i for i in ids if tokenizer.decode([i]).strip().isalpha() and tokenizer.decode([i])[0] == " "]
        dice = random.Random(1)
        self.ids = [dice.choice(words) for _ in range(count - 1)] + [tokenizer.token_to_id("<|im_end|>")]
        self.text = tokenizer.decode(self.ids[:-1]).strip().capitalize()
        self.ids[:-1] = tokenizer.encode(self.text, add_special_tokens=False).ids
        assert len(self.ids) == count, "the text does not encode to the ids it was made of"
        self.tokens = [tokenizer.decode([i]) for i in self.ids[:-1]] + [""]
        self.logprobs = [struct.unpack("f", struct.pack("f", -dice.expovariate(3)))[0] for _ in self.ids]
        prompt = (ids * (1 + 300_000 // len(ids)))[:300_000]
        self.prompt = ",".join(map(str, prompt)).encode()
        self.offsets = list(accumulate((len(str(i)) + 1 for i in prompt), initial=0))
        head = {"id": "cmpl-0123456789abcdef", "created": 1_700_000_000, "model": "stub"}
        self.whole = {kind: split(self._whole(kind, head)) for kind in ("completions", "chat", "generate")}
        self.events = {kind: [sse(e) for e in self._events(kind, head)] for kind in ("completions", "chat")}
        self.usage = {kind: data(head | {"choices": [], "usage": usage(count)}) for kind in self.events}
        self.done = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def _whole(self, kind: str, head: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "stop_reason": None, "token_ids": self.ids}
        if kind == "generate":
            content = [
                self._content(n, named=False) | {"top_logprobs": [self._content(n, named=False)]} for n in self.all
            ]
            choice = {"index": 0, "logprobs": {"content": content}, "finish_reason": "stop", "token_ids": self.ids}
            return {"request_id": head["id"], "choices": [choice], "prompt_logprobs": None, "kv_transfer_params": None}
        body: dict[str, Any] = head | {"usage": usage(len(self.ids)), "system_fingerprint": None}
        if kind == "chat":
            message: dict[str, Any] = {
                "role": "assistant",
                "content": self.text,
                "reasoning_content": None,
                "tool_calls": [],
            }
            content = [self._content(n) | {"top_logprobs": []} for n in self.all]
            choice |= {"message": message, "logprobs": {"content": content}}
            return body | {"object": "chat.completion", "choices": [choice], "prompt_token_ids": [PROMPT.decode()]}
        choice |= {"text": self.text, "logprobs": self._flat(self.all), "prompt_token_ids": [PROMPT.decode()]}
        return body | {"object": "text_completion", "choices": [choice | {"prompt_logprobs": None}]}

    def _events(self, kind: str, head: dict[str, Any]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if kind == "chat":
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            chat = head | {"object": "chat.completion.chunk"}
            events.append(chat | {"choices": [first], "prompt_token_ids": [PROMPT.decode()]})
        for n in self.all:
            last = "stop" if n == len(self.ids) - 1 else None
            choice: dict[str, Any] = {"index": 0, "finish_reason": last, "token_ids": [self.ids[n]]}
            if kind == "chat":
                logprobs = {"content": [self._content(n) | {"top_logprobs": []}]}
                choice |= {"delta": {"content": self.tokens[n]}, "logprobs": logprobs}
                events.append(chat | {"choices": [choice]})
                continue
            prompt = [PROMPT.decode()] if n == 0 else None
            choice |= {"text": self.tokens[n], "logprobs": self._flat([n]), "stop_reason": None}
            events.append(head | {"object": "text_completion", "choices": [choice | {"prompt_token_ids": prompt}]})
        return events

    @property
    def all(self) -> range:
        return range(len(self.ids))

    def _content(self, n: int, named: bool = True) -> dict[str, Any]:
        """One token's logprob as chats report it."""
        token = self.tokens[n] or "<|im_end|>"
        name = token if named else f"token_id:{self.ids[n]}"
        return {"token": name, "logprob": self.logprobs[n], "bytes": list(token.encode()) if named else None}

    def _flat(self, numbers: Any) -> dict[str, Any]:
        """Some tokens' logprobs as completions report them."""
        tokens = [self.tokens[n] for n in numbers]
        logprobs = [self.logprobs[n] for n in numbers]
        offsets = list(accumulate(map(len, tokens), initial=0))[:-1]
        top = [{token: logprob} for token, logprob in zip(tokens, logprobs, strict=True)]
        return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": tokens, "top_logprobs": top}


def usage(count: int) -> dict[str, Any]:
    return {"prompt_tokens": USED.decode(), "completion_tokens": count, "total_tokens": TOTAL.decode()}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def data(event: dict[str, Any]) -> bytes:
    return b"data: " + unquote(event) + b"\n\n"


def sse(event: dict[str, Any]) -> bytes:
    """One event as one HTTP chunk; one with a place for the prompt is framed when that is known."""
    line = data(event)
    return line if PROMPT in line else chunk(line)


def unquote(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    for mark in (PROMPT, USED, TOTAL):
        text = text.replace(b'"%s"' % mark, mark)
    return text


def split(body: dict[str, Any]) -> list[bytes]:
    """A body's pieces, the places for what each request has of its own among them."""
    return re.split(b"(%s|%s|%s)" % (PROMPT, USED, TOTAL), unquote(body))


class Mode:
    """How long calls take, and the streams that are under way."""

    def __init__(self) -> None:
        self.delay = self.rate = 0.0
        self.calls = 0
        self.active: list[set[Connection]] = [set() for _ in range(PHASES)]
        self.next_phase = 0

    async def tick(self) -> None:
        loop = asyncio.get_running_loop()
        due, phase = loop.time(), 0
        while True:
            if not self.rate:
                await asyncio.sleep(0.1)
                due = loop.time()
                continue
            due += 1 / self.rate / PHASES
            await asyncio.sleep(max(0.0, due - loop.time()))
            for connection in list(self.active[phase]):
                if connection.emit():
                    self.active[phase].discard(connection)
            phase = (phase + 1) % PHASES

    def stream(self, connection: Connection) -> None:
        self.next_phase = (self.next_phase + 1) % PHASES
        connection.phase = self.next_phase
        self.active[self.next_phase].add(connection)


class Connection(asyncio.Protocol):
    """One client. Requests are read as far as an answer needs: path, length, prompt, and whether to stream."""

    transport: asyncio.Transport
    phase = 0

    def __init__(self, answers: Answers, mode: Mode) -> None:
        self.answers, self.mode = answers, mode
        self.buffer = bytearray()
        self.needed = 0
        self.pending: list[bytes] = []
        self.at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.mode.active[self.phase].discard(self)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while len(self.buffer) >= self.needed:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self.needed = end + 4 + length
            if len(self.buffer) < self.needed:
                return
            body = bytes(self.buffer[end + 4 : self.needed])
            path = bytes(self.buffer[: self.buffer.find(b"\r\n")]).split(b" ")[1]
            del self.buffer[: self.needed]
            self.needed = 0
            self.answer(path, body)
            if not self.buffer:
                return

    def answer(self, path: bytes, body: bytes) -> None:
        if path.endswith(b"/chat/completions"):
            count = min(int(len(body) / self.answers.bytes_per_token), 299_999)
            prompt = self.answers.prompt[: self.answers.offsets[count] - 1]
            self.sample("chat", prompt, count, body)
        elif path.endswith((b"/completions", b"/generate")):
            start = body.find(b"[", body.find(b'"prompt":' if path.endswith(b"s") else b'"token_ids":')) + 1
            stop = body.find(b"]", start)
            prompt = body[start:stop]
            kind = "completions" if path.endswith(b"s") else "generate"
            self.sample(kind, prompt, prompt.count(b",") + 1, body[:start] + body[stop:])
        else:
            self.control(path.decode())

    def sample(self, kind: str, prompt: bytes, count: int, body: bytes) -> None:
        self.mode.calls += 1
        if b'"stream":true' in body or b'"stream": true' in body:
            self.stream(kind, prompt, count, body)
            return
        own = {PROMPT: prompt, USED: b"%d" % count, TOTAL: b"%d" % (count + len(self.answers.ids))}
        pieces = [own.get(piece, piece) for piece in self.answers.whole[kind]]
        pieces.insert(0, HEAD % sum(map(len, pieces)))
        delay = self.mode.delay or (self.mode.rate and len(self.answers.ids) / self.mode.rate)
        if delay:
            asyncio.get_running_loop().call_later(delay, self.transport.write, b"".join(pieces))
        else:
            self.transport.write(b"".join(pieces))

    def stream(self, kind: str, prompt: bytes, count: int, body: bytes) -> None:
        events = self.answers.events[kind]
        last = [self.answers.done]
        if b"include_usage" in body:
            total = b"%d" % (count + len(self.answers.ids))
            last.insert(0, chunk(self.answers.usage[kind].replace(USED, b"%d" % count).replace(TOTAL, total)))
        first = chunk(events[0].replace(PROMPT, prompt))
        whole = [STREAM_HEAD, first, *events[1:], *last]
        if self.mode.rate:
            self.transport.write(STREAM_HEAD)
            self.pending, self.at = [first, *events[1:-1], b"".join([events[-1], *last])], 0
            self.mode.stream(self)
        elif self.mode.delay:
            asyncio.get_running_loop().call_later(self.mode.delay, self.transport.write, b"".join(whole))
        else:
            self.transport.write(b"".join(whole))

    def emit(self) -> bool:
        """Send the next token; true after the last."""
        self.transport.write(self.pending[self.at])
        self.at += 1
        return self.at == len(self.pending)

    def control(self, path: str) -> None:
        url = urlsplit(path)
        body: Any = {}
        if url.path == "/v1/models":
            model = {"id": "stub", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 262_144}
            body = {"object": "list", "data": [model]}
        elif url.path == "/version":
            body = {"version": "0.24.0"}
        elif url.path == "/text":
            body = {"text": self.answers.text, "ids": self.answers.ids, "bytes": self.answers.bytes_per_token}
        elif url.path == "/mode":
            wanted = dict(parse_qsl(url.query))
            self.mode.delay, self.mode.rate = float(wanted.get("delay", 0)), float(wanted.get("rate", 0))
            body = {"calls": self.mode.calls}
        data = json.dumps(body).encode()
        self.transport.write(HEAD % len(data) + data)


async def serve(port: int, folder: str, tokens: int) -> None:
    answers, mode = Answers(folder, tokens), Mode()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answers, mode), "127.0.0.1", port, backlog=4096)
    ticking = loop.create_task(mode.tick())
    async with server:
        await asyncio.wait([ticking])


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
