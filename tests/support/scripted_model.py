"""An OpenAI-compatible chat server on a real port that says what a script tells it to, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[dict[str, Any]], dict[str, Any]]
"""From the request's body to the reply's message: {"content": …} or {"tool_calls": [(name, arguments), …]}."""


class ScriptedModel:
    """The server; `requests` has every body it received."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.base_url = ""

    @contextmanager
    def serving(self) -> Iterator[ScriptedModel]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                model.requests.append(body)
                reply = model.script(body)
                if "status" in reply:
                    self._send(reply["status"], "application/json", json.dumps({"error": reply["error"]}).encode())
                elif body.get("stream"):
                    self._send(200, "text/event-stream", b"".join(_events(body, reply)))
                else:
                    self._send(200, "application/json", json.dumps(_completion(body, reply)).encode())

            def _send(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.base_url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(10)


def _message(reply: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"index": i, "id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        for i, (name, args) in enumerate(reply.get("tool_calls", []))
    ]
    return {"role": "assistant", "content": reply.get("content")} | ({"tool_calls": calls} if calls else {})


def _completion(body: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
    message = _message(reply)
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _events(body: dict[str, Any], reply: dict[str, Any]) -> Iterator[bytes]:
    message = _message(reply)
    reason = "tool_calls" if "tool_calls" in message else "stop"
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    for delta, finish in ((message, None), ({}, reason)):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        yield f"data: {json.dumps(base | {'choices': [choice]})}\n\n".encode()
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    yield f"data: {json.dumps(base | {'choices': [], 'usage': usage})}\n\n".encode()
    yield b"data: [DONE]\n\n"
