"""What inference servers' metrics say of their load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.engine.base import EngineLoad
from agentcore_rl_toolkit.engine.remote.server_metrics import read_load

VLLM = """# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
"""
SGLANG = 'sglang:token_usage{model="m"} 0.5\nsglang:num_running_reqs{model="m"} 8.0\nsglang:num_queue_reqs 1.0\n'


@pytest.mark.parametrize(
    ("text", "load"),
    [
        (VLLM, EngineLoad(0.75, 7, 2, 1)),
        (SGLANG, EngineLoad(0.5, 8, 1, 0)),
        ("vllm:gpu_cache_usage_perc 0.125", EngineLoad(0.125, 0, 0, 0)),
        ("vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running 1", None),
        ("vllm:kv_cache_usage_perc 7", EngineLoad(1.0, 0, 0, 0)),
        ("", None),
    ],
)
def test_loads(text: str, load: EngineLoad | None) -> None:
    assert read_load(text) == load


@given(st.text() | st.from_regex(r"vllm:(kv_cache_usage_perc|num_requests_waiting)(\{.*\})? \S+\n"))
def test_any_text_is_read(text: str) -> None:
    load = read_load(text)
    assert load is None or 0 <= load.kv_used <= 1


def test_a_request_takes_as_much_as_those_that_run() -> None:
    assert EngineLoad(0.5, 10, 0).next_kv == 0.05
    assert EngineLoad(0.0, 0, 0).next_kv == 0.0
