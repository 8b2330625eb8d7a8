"""A server that answers as OpenAI's, Anthropic's and Bedrock's Converse APIs do, from a script of verdicts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.process import http_server


class FakeJudge:
    """`verdicts` are answered in turn, the last one for ever: an object, a status, the bytes of a body, or a function
    that writes what it likes."""

    def __init__(self, *verdicts: Any) -> None:
        self.verdicts = list(verdicts)
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        """Path, headers and body of each."""
        self.lock = threading.Lock()
        self.running = self.most_running = 0
        self.hold = threading.Event()
        """Set: requests are answered."""
        self.hold.set()

    @contextmanager
    def serving(self) -> Iterator[str]:
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> Any:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with judge.lock:
                    judge.requests.append((self.path, dict(self.headers.items()), body))
                    verdict = judge.verdicts.pop(0) if len(judge.verdicts) > 1 else judge.verdicts[0]
                    judge.running += 1
                    judge.most_running = max(judge.most_running, judge.running)
                judge.hold.wait(20)
                with judge.lock:
                    judge.running -= 1
                if callable(verdict):
                    self.close_connection = True
                    return verdict(self.wfile)
                status = verdict if isinstance(verdict, int) else 200
                data = verdict if isinstance(verdict, bytes) else json.dumps(_reply(self.path, verdict)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                return self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        with http_server(Handler) as url:
            yield url


def _reply(path: str, verdict: Any) -> dict[str, Any]:
    if isinstance(verdict, int):
        return {"message": "not now"}
    if path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": json.dumps(verdict)}
        return {"choices": [{"message": message}], "usage": {"prompt_tokens": 100, "completion_tokens": 10}}
    if path.endswith("/messages"):
        content = [{"type": "text", "text": "so"}, {"type": "tool_use", "id": "1", "name": "verdict", "input": verdict}]
        return {"content": content, "usage": {"input_tokens": 100, "output_tokens": 10}}
    use = {"toolUse": {"toolUseId": "1", "name": "verdict", "input": verdict}}
    return {
        "output": {"message": {"role": "assistant", "content": [use]}},
        "stopReason": "tool_use",
        "usage": {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110},
        "metrics": {"latencyMs": 1},
    }
