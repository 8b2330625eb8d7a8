"""Rollouts in flight: submit them to a runtime and bring each result back once.

In: payloads, a runtime, a store. Out: stored results, as futures or batch items. Its `scheduler` is the one loop that
runs many rollouts. It refuses to know models, gateways or trainers.

Imports `agent`, `runtime`, `store`.
"""

from .batch import AsyncBatchResult, BatchItem, BatchResult
from .client import RolloutClient
from .future import RolloutFuture

__all__ = [
    "AsyncBatchResult",
    "BatchItem",
    "BatchResult",
    "RolloutClient",
    "RolloutFuture",
]
