"""Passes of fixed shape, repeated as CUDA graphs: a small model's kernels take longer to launch than to run.

A graph reads and writes the memory it was recorded with. So what a pass works on must stay where it is, and all graphs
are dropped when the model's weights are no longer where they were. That weights change in place is no matter.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn

from .model_runner import out_of_memory

logger = logging.getLogger(__name__)

MOST = 128
"""Graphs that are kept, the least recently used ones dropped beyond."""


class Graphs:
    """Runs passes: a new shape as it is, one that has been seen before as a graph."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._device = model, device
        self._failed = device.type != "cuda"
        self._still = False
        """Whether nothing but kernels runs in a pass."""
        self._seen: set[Hashable] = set()
        self._graphs: OrderedDict[Hashable, Any] = OrderedDict()
        self._pool: Any = None
        self._side: Any = None
        self._weights: tuple[Any, ...] | None = None
        self.replayed = 0
        """Passes that were repeated as graphs."""
        self.check()

    def run(self, shape: Hashable, work: Callable[[], None]) -> None:
        """Do `work`, which is the same for the same `shape`."""
        if self._failed or not self._still or shape not in self._seen:
            self._seen.add(shape)  # a first run also sets up what can't be recorded
            work()
            return
        graph = self._graphs.get(shape) or self._recorded(shape, work)
        if graph is None:
            work()
            return
        self._graphs.move_to_end(shape)
        self.replayed += 1
        graph.replay()

    def drop(self, about: str | None = None) -> None:
        """Forget all graphs, or those of shapes that begin with `about`."""
        for shape in [s for s in self._graphs if about is None or s[0] == about]:  # type: ignore[index]
            del self._graphs[shape]
        self._pool = self._pool if self._graphs else None

    def check(self) -> None:
        """Whoever held the model may have moved its weights, or put hooks into it that have to be called."""
        if self._failed:
            return
        weights = _addresses(self._model)
        if weights != self._weights:
            self.drop()
            self._weights = weights
        self._still = _still(self._model)

    def _recorded(self, shape: Hashable, work: Callable[[], None]) -> Any:
        try:
            graph = self._record(work)
        except Exception as error:
            self.drop()
            if out_of_memory(error):
                raise
            self._failed = True
            logger.warning("this model's passes can't be recorded as CUDA graphs, so sampling is slower: %s", error)
            return None
        self._graphs[shape] = graph
        if len(self._graphs) > MOST:
            self._graphs.popitem(last=False)
        return graph

    def _record(self, work: Callable[[], None]) -> Any:
        # Not `torch.cuda.graph`, which gives all free memory back to the driver each time.
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._side = self._side or torch.cuda.Stream(self._device)
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._side):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph


def _addresses(model: nn.Module) -> tuple[Any, ...]:
    """Where weights are, and which adapters are on, which is no matter of weights."""
    places = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
    adapted = [vars(module) for module in model.modules() if "_disable_adapters" in vars(module)]
    names = ("_disable_adapters", "_active_adapter", "merged_adapters")
    return (*places, *(str(flags.get(name)) for flags in adapted for name in names))


def _still(model: nn.Module) -> bool:
    """No hooks, all weights on one device."""
    devices = {parameter.device for parameter in model.parameters()}
    return len(devices) == 1 and not any(
        module._forward_hooks or module._forward_pre_hooks or hasattr(module, "_hf_hook") for module in model.modules()
    )
