"""Weights from TRL to a vLLM server without a GPU.

TRL and vLLM know one way to send weights between them, NCCL. Here the tensors go through the store in which the two
meet anyhow. What is said around them over HTTP, and what the server does with them, stays TRL's and vLLM's own.
`register` is a plug-in of the server (vllm.general_plugins), `send_from_cpu` is for the trainer's process.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

NAME = "store"


def register() -> None:
    import vllm._custom_ops
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

    class StoreEngine(NCCLWeightTransferEngine):  # type: ignore[misc]
        def init_transfer_engine(self, init_info: Any) -> None:
            self.model_update_group = group(init_info.master_address, init_info.master_port, rank=1)

        def receive_weights(self, update_info: Any) -> None:
            import torch

            sent = self.model_update_group.broadcast_obj(None, src=0)
            told = zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
            for (name, dtype, shape), (same, tensor) in zip(told, sent, strict=True):
                assert (name, getattr(torch, dtype), shape) == (same, tensor.dtype, list(tensor.shape))
            self.model.load_weights(sent)

        def shutdown(self) -> None:
            self.model_update_group = None

    vllm._custom_ops._supports_onednn = False  # a CPU build packs tied embeddings once and for all
    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(NAME, StoreEngine)


def send_from_cpu() -> None:
    from trl.generation.vllm_client import VLLMClient

    def init_communicator(self: Any, device: Any = 0) -> None:
        assert self.get_server_info()["weight_transfer_config"]["backend"] == NAME
        place = {"master_address": "127.0.0.1", "master_port": self.group_port}
        info = {**place, "rank_offset": 1, "world_size": self.get_world_size() + 1, "packed": True}
        with ThreadPoolExecutor(1) as other:
            answer = other.submit(self._post, f"{self.base_url}/init_weight_transfer_engine", json={"init_info": info})
            self.communicator = group(*place.values(), rank=0)
            answer.result()

    def producer(iterator: Any, group: Any, src: int, post_iter_func: Any) -> None:
        group.broadcast_obj([(item[0], post_iter_func(item).detach().clone()) for item in iterator], src=src)

    import trl.generation.vllm_client as client

    VLLMClient.init_communicator = init_communicator
    client.packed_nccl_broadcast_producer = producer


def group(host: str, port: int, rank: int) -> Any:
    from vllm.distributed.utils import StatelessProcessGroup

    return StatelessProcessGroup.create(host=host, port=port, rank=rank, world_size=2)
