"""A vLLM server as far as the wire shows: bodies, events and errors of vLLM 0.32, over arithmetic for a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .fake_server import FakeServer, Handler, logprob

MODEL = "fake/model"
IMAGE = 7
"""The id of its placeholder tokens."""


class FakeVllm(FakeServer):
    """Also knows LoRA adapters, which sample with another seed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.adapters: dict[str, str] = {}
        self.engine_dead = False
        self.kv_used: float | None = None
        """The share of its KV cache that its metrics tell; None for a server without metrics."""
        self.kv_running, self.kv_waiting = 1, 0
        self.image_tokens = 4
        self.images: set[str] = set()
        """Hashes of the images in its cache."""

    def handle(self, handler: Handler, path: str, body: dict[str, Any]) -> None:
        if path == "/metrics" and self.kv_used is not None:
            counts = {"kv_cache_usage_perc": self.kv_used, "num_requests_running": self.kv_running}
            counts |= {"num_requests_waiting": self.kv_waiting, "num_preemptions_total": 0}
            lines = [f'vllm:{name}{{engine="0",model_name="{MODEL}"}} {value}' for name, value in counts.items()]
            handler.data("\n".join(["# TYPE vllm:kv_cache_usage_perc gauge", *lines, ""]).encode(), "text/plain")
        elif path == "/health":
            handler.json(None, 503 if self.engine_dead else 200)
        elif path == "/v1/models":
            handler.json({"object": "list", "data": self._models()})
        elif path == "/v1/completions" and body.get("prompt_logprobs"):
            handler.json({"choices": [{"index": 0, "text": "x", "prompt_logprobs": _prompt_logprobs(body["prompt"])}]})
        elif path == "/v1/completions":
            self._sample(handler, body, body["prompt"], body, _completion)
        elif path == "/v1/chat/completions/render":
            encoded = body["messages"][0]["content"][0]["image_url"]["url"].partition(",")[2]
            placeholder = {"offset": 2, "length": self.image_tokens + 2}  # with the tokens around the image
            features = {"mm_placeholders": {"image": [placeholder]}, "kwargs_data": {"image": [encoded]}}
            handler.json({"token_ids": [1, 2, 3, *[IMAGE] * self.image_tokens, 4, 5], "features": features})
        elif path == "/inference/v1/generate" and not self._take_images(body.get("features")):
            handler.json({"error": {"message": "EngineCore encountered an issue", "code": 500}}, 500)
        elif path == "/inference/v1/generate":
            self._sample(handler, body, body["token_ids"], body["sampling_params"], _generated)
        elif path == "/v1/chat/completions":
            prompt = [10 + ord(c) % 900 for m in body["messages"] for c in str(m["content"])]
            body.setdefault("max_tokens", body.get("max_completion_tokens", self.context_length - len(prompt)))
            self._sample(handler, body, prompt, body, _chat)
        elif path == "/pause":
            self.going.clear()
            handler.json({"status": "paused"})
        elif path == "/resume":
            self.going.set()
            handler.json({"status": "resumed"})
        elif path == "/weight_info" and self.weight_version:
            handler.json({"weight_version": self.weight_version})
        else:
            handler.json({"detail": "Not Found"}, 404)

    def _take_images(self, features: dict[str, Any] | None) -> bool:
        """Whether the server has all images of a request now."""
        if features is not None:
            named = zip(features["mm_hashes"]["image"], features["kwargs_data"]["image"], strict=True)
            given = {name for name, data in named if data is not None}
            self.images |= given
            return self.images.issuperset(features["mm_hashes"]["image"])
        return True

    def _models(self) -> list[dict[str, Any]]:
        own = {"id": MODEL, "object": "model", "root": MODEL, "parent": None, "max_model_len": self.context_length}
        return [own] + [{"id": name, "root": path, "parent": MODEL} for name, path in self.adapters.items()]

    def _sample(
        self, handler: Handler, body: dict[str, Any], prompt: list[int], sampling: dict[str, Any], wire: Any
    ) -> None:
        limit = sampling.get("max_tokens", 16)
        if len(prompt) + limit > self.context_length:
            error = (
                f"This model's maximum context length is {self.context_length} tokens. However, you requested {limit} "
                f"output tokens and your prompt contains at least {len(prompt)} input tokens."
            )
            return handler.json(
                {"error": {"message": error, "type": "BadRequestError", "param": None, "code": 400}}, 400
            )
        name = body.get("model") or MODEL
        if name != MODEL and name not in self.adapters:
            error = f"The model `{name}` does not exist."
            return handler.json({"error": {"message": error, "type": "NotFoundError", "param": None, "code": 404}}, 404)
        params = sampling | {"max_tokens": limit, "stop": sampling.get("stop_token_ids") or []}
        if name in self.adapters:
            params |= {"seed": (params.get("seed") or 0) + 1000, "temperature": 1.0}
        sampled = self.tokens(handler, prompt, params)
        top = int(sampling.get("top_logprobs" if wire is _chat else "logprobs") or 0)
        if body.get("stream"):
            return handler.events(wire.stream(prompt, sampled, top, self.weight_version))
        return handler.json(wire.whole(prompt, list(sampled), top, self.weight_version))


def _prompt_logprobs(ids: list[int]) -> list[dict[str, Any] | None]:
    """Of each token but the first: its own, and the best one's."""

    def entry(place: int, rank: int) -> dict[str, Any]:
        return {"logprob": -rank - ids[place] / 100 - place / 1000, "rank": rank, "decoded_token": "x"}

    best = str(max(ids) + 1)
    return [None, *({str(ids[place]): entry(place, 2), best: entry(place, 1)} for place in range(1, len(ids)))]


def _head(kind: str) -> dict[str, Any]:
    return {"id": "cmpl-1", "object": kind, "created": 1_700_000_000, "model": MODEL}


def _alternatives(ids: list[int], token: int, value: float, top: int) -> list[tuple[int, float]]:
    """As vLLM orders them: the sampled token, then the `top` best, of which it may be one."""
    others = [(token + i, value - i / 10) for i in range(1, top)]
    return [(token, value), *others]


class _completion:
    @staticmethod
    def choice(ids: list[int], items: list[tuple[int, float, str | None]], top: int) -> dict[str, Any]:
        logprobs = {
            "text_offset": [0] * len(items),
            "token_logprobs": [value for _, value, _ in items],
            "tokens": [f"token_id:{token}" for token, _, _ in items],
            "top_logprobs": [
                {f"token_id:{t}": v for t, v in _alternatives(ids, token, value, top)} for token, value, _ in items
            ],
        }
        return {
            "index": 0,
            "text": "\u2028x\x85" * len(items),
            "logprobs": logprobs,
            "finish_reason": items[-1][2] if items else None,
            "stop_reason": None,
            "token_ids": [token for token, _, _ in items],
        }

    @classmethod
    def stream(cls, prompt: list[int], items: Iterator[Any], top: int, version: str | None) -> Iterator[dict[str, Any]]:
        for i, item in enumerate(items):
            first = {"prompt_token_ids": prompt if i == 0 else None}
            yield _head("text_completion") | {"choices": [cls.choice(prompt, [item], top) | first], "usage": None}

    @classmethod
    def whole(cls, prompt: list[int], items: list[Any], top: int, version: str | None) -> dict[str, Any]:
        choice = cls.choice(prompt, items, top) | {"prompt_token_ids": prompt, "prompt_logprobs": None}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(items)}
        return _head("text_completion") | {"choices": [choice], "usage": usage}


class _generated:
    @staticmethod
    def choice(ids: list[int], items: list[tuple[int, float, str | None]], top: int) -> dict[str, Any]:
        content = [
            {
                "token_id": token,
                "logprob": value,
                "rank": 1,
                "top_logprobs": [{"token_id": t, "logprob": v} for t, v in _alternatives(ids, token, value, top)],
            }
            for token, value, _ in items
        ]
        ids = [token for token, _, _ in items]
        return {"index": 0, "logprobs": {"content": content}, "finish_reason": items[-1][2], "token_ids": ids}

    @classmethod
    def stream(cls, prompt: list[int], items: Iterator[Any], top: int, version: str | None) -> Iterator[dict[str, Any]]:
        for count, item in enumerate(items, 1):
            choice = cls.choice(prompt, [item], top)
            if item[2] and version:
                choice["weight_versions"] = [{"version": version, "start": 0, "end": count}]
            yield {"request_id": "r", "choices": [choice], "usage": None}

    @classmethod
    def whole(cls, prompt: list[int], items: list[Any], top: int, version: str | None) -> dict[str, Any]:
        choice = cls.choice(prompt, items, top)
        if version:
            choice["weight_versions"] = [{"version": version, "start": 0, "end": len(items)}]
        return {"request_id": "r", "choices": [choice], "prompt_logprobs": None}


class _chat:
    """Says each token as `<id> `; the message ends in a tool call with its arguments in pieces."""

    @staticmethod
    def choice(ids: list[int], items: list[tuple[int, float, str | None]], top: int) -> dict[str, Any]:
        content = [
            {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
            for token, value, _ in items
        ]
        ids = [token for token, _, _ in items]
        return {"index": 0, "logprobs": {"content": content}, "finish_reason": items[-1][2], "token_ids": ids}

    @classmethod
    def stream(cls, prompt: list[int], items: Iterator[Any], top: int, version: str | None) -> Iterator[dict[str, Any]]:
        head = _head("chat.completion.chunk")
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        yield head | {"choices": [first], "prompt_token_ids": prompt}
        count = 0
        for item in items:
            count += 1
            delta: dict[str, Any] = {"content": f"{item[0]} "}
            if item[2]:
                delta = {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}
            elif count == 1:
                delta = {"reasoning": "hm", "tool_calls": [
                    {"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":'}}
                ]}  # fmt: skip
            yield head | {"choices": [cls.choice(prompt, [item], top) | {"delta": delta}]}
        yield head | {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": count}}

    @classmethod
    def whole(cls, prompt: list[int], items: list[Any], top: int, version: str | None) -> dict[str, Any]:
        said = {"role": "assistant", "content": "".join(f"{token} " for token, _, _ in items), "reasoning": None}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(items)}
        choice = cls.choice(prompt, items, top) | {"message": said}
        return _head("chat.completion") | {"choices": [choice], "usage": usage, "prompt_token_ids": prompt}


__all__ = ["MODEL", "FakeVllm", "logprob"]
