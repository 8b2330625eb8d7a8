"""Which protections hold: found out once, in a process that is thrown away."""

from __future__ import annotations

from agentcore_rl_toolkit.runtime.local.sandbox import probe as probing
from agentcore_rl_toolkit.runtime.local.sandbox.namespaces import PROTECTIONS


def test_the_kernel_is_probed_once_for_all_runtimes_of_a_process() -> None:
    first = probing.probe()
    processes = probing._probe_kernel.cache_info().misses
    assert set(first) == set(PROTECTIONS)
    first["filesystem"] = "changed by a caller"
    assert probing.probe()["filesystem"] != "changed by a caller"
    assert probing._probe_kernel.cache_info().misses == processes
