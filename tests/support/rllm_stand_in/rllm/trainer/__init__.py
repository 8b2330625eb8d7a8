"""A trainer that runs one step's rollouts as rLLM's adapter does, and logs what came back as rLLM does."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit import RolloutClient


class AgentTrainer:
    def __init__(self, *, backend: str, config: Any, train_dataset: Any, val_dataset: Any = None) -> None:
        self.backend, self.config, self.train_dataset, self.val_dataset = backend, config, train_dataset, val_dataset

    def train(self) -> None:
        try:
            results = asyncio.run(self._step())
        except KeyboardInterrupt:
            print("interrupted")  # noqa: T201
            return
        folder = Path(self.config.training.default_local_dir)
        folder.mkdir(parents=True)
        seen = {"trainer": self.backend, "train": results, "held_out": len(self.val_dataset or ())}
        (folder / "seen.json").write_text(json.dumps(seen | {"config": self.config}))
        if self.config.rllm.episode_logging.log_episodes:
            self._log(results)

    def _log(self, results: list[Any]) -> None:
        folder = Path(self.config.rllm.episode_logging.episode_log_dir) / "episodes" / "train_step_1_epoch_0"
        folder.mkdir(parents=True, exist_ok=True)
        for number, result in enumerate(results):
            error = "Timeout after 9.1s" if result == "timeout" else result.get("stop_reason")
            failed = result == "timeout" or result.get("status_code", 200) != 200
            episode = {"episode_id": f"t:{number}", "metadata": {"error": {"error_message": error}} if failed else {}}
            (folder / f"episode_hash0_idt_{number}.json").write_text(json.dumps(episode))
        (folder / "batch_summary.json").write_text(json.dumps({"num_episodes": len(results)}))

    async def _step(self) -> list[Any]:
        remote, gateway = self.config.rllm.remote_runtime, self.config.rllm.gateway
        client = RolloutClient(**remote.agentcore, exp_id=self.config.rllm.trainer.experiment_name)
        url = f"http://{gateway.host}:{gateway.port}/v1"
        rows = [row for row in self.train_dataset.data for _ in range(self.config.training.group_size)]
        return list(await asyncio.gather(*(self._run_one(client, row, url, remote.session_timeout) for row in rows)))

    async def _run_one(self, client: RolloutClient, row: dict[str, Any], url: str, timeout: float) -> Any:
        future = await client.invoke_async(
            payload=row,
            session_id=str(uuid.uuid4()),
            input_id=str(row.get("id") or uuid.uuid4()),
            base_url=url,
            model_id=self.config.model.name,
        )
        try:
            return await future.result_async(timeout=timeout)
        except asyncio.TimeoutError:
            return "timeout"
