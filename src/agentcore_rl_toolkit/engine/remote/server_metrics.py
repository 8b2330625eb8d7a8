"""The load of a vLLM or SGLang server, read from its Prometheus metrics. Pure."""

from __future__ import annotations

import math
import re

from ..base import EngineLoad

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^\n]*\})?[ \t]+(?P<value>\S+)", re.MULTILINE)
_KV = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
_WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
_PREEMPTED = ("vllm:num_preemptions_total", "vllm:num_preemptions", "sglang:num_retracted_reqs")
LARGEST = 8 << 20


def read_load(text: str) -> EngineLoad | None:
    """The load in a server's metrics; None if they don't say how full the KV cache is.

    A server of several engines (data parallelism) has a line for each: the fullest cache counts, requests add up.

    >>> read_load('vllm:kv_cache_usage_perc{engine="0"} 0.5\\nvllm:num_requests_running{engine="0"} 4.0\\n')
    EngineLoad(kv_used=0.5, running=4, waiting=0, preempted=0)
    >>> read_load("process_cpu_seconds_total 7") is None
    True
    """
    values: dict[str, list[float]] = {}
    for found in _LINE.finditer(text):
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            values.setdefault(found["name"], []).append(value)
    used = next((values[name] for name in _KV if name in values), None)
    if used is None:
        return None
    running, waiting, preempted = (_sum(values, names) for names in (_RUNNING, _WAITING, _PREEMPTED))
    return EngineLoad(min(1.0, max(0.0, *used, 0.0)), running, waiting, preempted)


def _sum(values: dict[str, list[float]], names: tuple[str, ...]) -> int:
    return int(sum(next((values[name] for name in names if name in values), [0.0])))
