"""Submitting rollouts to a runtime and bringing their results back."""

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
