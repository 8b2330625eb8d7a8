"""An SGLang server as far as the wire shows: `/generate` and its neighbours, over arithmetic in place of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .fake_server import FakeServer, Gone, Handler

MODEL = "fake/model"


class FakeSglang(FakeServer):
    """`incremental` is its `--incremental-streaming-output`; without it each event repeats all that came before."""

    def __init__(self, *, incremental: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.incremental = incremental
        self.weight_version = "default"
        self.aborts: list[str] = []

    def handle(self, handler: Handler, path: str, body: dict[str, Any]) -> None:
        if path == "/v1/models":
            card = {"id": MODEL, "root": MODEL, "parent": None, "max_model_len": self.context_length}
            handler.json({"object": "list", "data": [card]})
        elif path == "/model_info":
            handler.json({"model_path": MODEL, "weight_version": self.weight_version})
        elif path == "/generate":
            self._generate(handler, body)
        elif path == "/abort_request":
            self.aborts.append(body["rid"])
            handler.json(None)
        elif path == "/pause_generation":
            self.going.clear()
            handler.json({"message": "Generation paused successfully.", "status": "ok"})
        elif path == "/continue_generation":
            self.going.set()
            handler.json({"message": "Generation continued successfully.", "status": "ok"})
        else:
            handler.json({"detail": "Not Found"}, 404)

    def _generate(self, handler: Handler, body: dict[str, Any]) -> None:
        prompt, sampling = body["input_ids"], body["sampling_params"]
        limit = sampling.get("max_new_tokens", 128)
        if len(prompt) + limit > self.context_length:
            said = (
                f"Requested token count exceeds the model's maximum context length of {self.context_length} tokens. "
                f"You requested a total of {len(prompt) + limit} tokens."
            )
            error = {"message": said, "type": "invalid_request_error", "code": 400, "retryable": False}
            return handler.events(iter([{"error": error}])) if body["stream"] else handler.json({"error": error}, 400)
        params = sampling | {"max_tokens": limit, "stop": sampling.get("stop_token_ids") or []}
        params["seed"] = sampling.get("sampling_seed")
        outputs = self._outputs(body, prompt, self.tokens(_Aborting(self, handler, body["rid"]), prompt, params))
        if body["stream"]:
            return handler.events(outputs)
        *_, last = outputs
        return handler.json(last)

    def _outputs(self, body: dict[str, Any], prompt: list[int], items: Iterator[Any]) -> Iterator[dict[str, Any]]:
        incremental = self.incremental and body["stream"]
        ids: list[int] = []
        logprobs: list[Any] = []
        tops: list[Any] = []
        for token, value, finish in items:
            ids.append(token)
            logprobs.append([value, token, None])
            tops.append([[value - i / 10, token + i, None] for i in range(body["top_logprobs_num"])])
            reason = {"stop": {"type": "stop", "matched": token}, "length": {"type": "length", "length": len(ids)}}
            since = len(ids) - 1 if incremental else 0
            meta = {
                "id": body["rid"],
                "finish_reason": reason.get(finish),
                "prompt_tokens": len(prompt),
                "weight_version": self.weight_version,
                "completion_tokens": len(ids),
                "output_token_logprobs": logprobs[since:],
                "output_token_logprobs_length": len(ids),
                "output_top_logprobs": tops[since:],
            }
            yield {"text": "\u2028", "output_ids": ids[since:], "meta_info": meta}


class _Aborting(Handler):
    """A handler's `wait` that also notices /abort_request."""

    def __init__(self, fake: FakeSglang, handler: Handler, rid: str) -> None:
        self.fake, self.handler, self.rid = fake, handler, rid

    def wait(self, seconds: float) -> None:
        if self.rid in self.fake.aborts:
            raise Gone
        self.handler.wait(seconds)
