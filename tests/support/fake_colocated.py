"""vLLM inside the trainer's process, as far as `ColocatedEngine` uses it: an engine that is stepped by hand."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from .fake_server import EOS, logprob, next_token


class FakeLlm:
    """Has vLLM's `LLM.llm_engine`; steps may be slowed down, held and watched."""

    def __init__(self, context_length: int = 512) -> None:
        self.llm_engine = self
        self.model_config = SimpleNamespace(max_model_len=context_length)
        self.running: dict[str, tuple[list[int], int, Any]] = {}
        self.aborted: list[str] = []
        self.pace = 0.0
        self.stepping = threading.Lock()
        """Held while a step is under way: a second thread in a step, or in the weights meanwhile, is a defect."""
        self.may_step = threading.Event()
        self.may_step.set()
        self.in_step = threading.Event()
        self.steps = 0
        self.fails: Exception | None = None
        self.weights = "0"
        self.read_with: dict[str, str] = {}
        """By request, the weights that its prompt's keys and values are of."""
        self._cached: dict[tuple[Any, ...], str] = {}

    def add_request(self, number: str, prompt: dict[str, Any], params: Any) -> None:
        ids = list(prompt["prompt_token_ids"])
        self.running[number] = (ids, len(ids), params)
        self.read_with[number] = self._cached.setdefault((prompt.get("cache_salt"), *ids), self.weights)

    def reset_prefix_cache(self) -> bool:
        """As vLLM, it keeps the cache while requests hold blocks of it."""
        if not self.running:
            self._cached.clear()
        return not self.running

    def abort_request(self, numbers: list[str]) -> None:
        for number in numbers:
            if self.running.pop(number, None) is not None:
                self.aborted.append(number)

    def step(self) -> list[Any]:
        assert self.stepping.acquire(blocking=False), "two steps at once"
        try:
            self.in_step.set()
            assert self.may_step.wait(20)
            time.sleep(self.pace)
            if self.fails is not None:
                raise self.fails
            self.steps += 1
            return [self._token(number) for number in list(self.running)]
        finally:
            self.in_step.clear()
            self.stepping.release()

    def _token(self, number: str) -> Any:
        ids, start, params = self.running[number]
        seed = (params.seed or 0) if params.temperature else 0
        token = next_token(ids, seed)
        value = logprob(ids, token)
        others = {token + i: SimpleNamespace(logprob=value - i / 10) for i in range(1, params.logprobs or 0)}
        ids.append(token)
        stopped = token in (params.stop_token_ids or []) or (token == EOS and not params.ignore_eos)
        over = len(ids) - start >= params.max_tokens
        finish = "stop" if stopped else "length" if over else None
        if finish is not None:
            del self.running[number]
        known = {token: SimpleNamespace(logprob=value), **others}
        choice = SimpleNamespace(token_ids=[token], logprobs=[known], finish_reason=finish)
        return SimpleNamespace(request_id=number, outputs=[choice])


@contextmanager
def vllm_importable() -> Iterator[None]:
    """Where vLLM is not installed, its settings are plain namespaces."""
    if importlib.util.find_spec("vllm") is not None:
        yield
        return
    package, params = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    package.SamplingParams = _settings  # type: ignore[attr-defined]
    params.RequestOutputKind = SimpleNamespace(DELTA="delta")  # type: ignore[attr-defined]
    params.StructuredOutputsParams = SimpleNamespace  # type: ignore[attr-defined]
    sys.modules |= {"vllm": package, "vllm.sampling_params": params}
    try:
        yield
    finally:
        del sys.modules["vllm"], sys.modules["vllm.sampling_params"]


def _settings(**told: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"temperature": 1.0, "seed": None} | told)
