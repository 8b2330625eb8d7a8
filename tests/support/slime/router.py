"""slime's router with one SGLang server behind it, on a real port; its model says what a script tells it to."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from support.fake_server import Handler
from support.fake_sglang import FakeSglang

Script = Callable[[str], str]
"""From the prompt's text to what is said."""
LAYERS, EXPERTS = 3, 2


class FakeRouter(FakeSglang):
    """`tokenizer` turns prompts into text and what is said into tokens."""

    def __init__(self, tokenizer: Any, script: Script, **options: Any) -> None:
        super().__init__(context_length=4096, **options)
        self.tokenizer, self.script = tokenizer, script
        self.weight_version = "3"
        self.settled = 0
        """How often it was told to end everything."""
        self._ending = False

    def handle(self, handler: Handler, path: str, body: dict[str, Any]) -> None:
        if path == "/workers":
            handler.json({"workers": [{"url": self.url}]})
        elif path == "/v1/loads":
            handler.json({"loads": [{"num_running_reqs": self.running, "num_waiting_reqs": 0}]})
        elif path == "/abort_request" and body.get("abort_all"):
            self.settled += 1
            self.aborts.extend(told["rid"] for asked, told in self.requests if asked == "/generate")
            handler.json(None)
        else:
            super().handle(handler, path, body)

    def _tokens(
        self, handler: Handler, prompt: list[int], params: dict[str, Any]
    ) -> Iterator[tuple[int, float, str | None]]:
        said = self.tokenizer.encode(self.script(self.tokenizer.decode(prompt)), add_special_tokens=False)
        sampled = [*said, self.tokenizer.eos_token_id][: params["max_tokens"]]
        whole = len(sampled) > len(said)
        for place, token in enumerate(sampled):
            handler.wait(self.pace)
            finish = ("stop" if whole else "length") if place == len(sampled) - 1 else None
            yield token, -0.25 - place / 100, finish

    def _outputs(self, body: dict[str, Any], prompt: list[int], items: Iterator[Any]) -> Iterator[dict[str, Any]]:
        for output in super()._outputs(body, prompt, items):
            meta = output["meta_info"]
            if body.get("return_routed_experts") and meta["finish_reason"]:
                first = body["routed_experts_start_len"]
                last = len(prompt) + meta["completion_tokens"] - 1
                meta["routed_experts"] = base64.b64encode(array("i", routes(first, last)).tobytes()).decode()
            yield output


def routes(first: int, last: int) -> list[int]:
    """The experts of the tokens at these positions: which are told apart by position, layer and rank."""
    width = LAYERS * EXPERTS
    return [1 + position * width + number for position in range(first, last) for number in range(width)]
