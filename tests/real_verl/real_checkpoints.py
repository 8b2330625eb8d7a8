"""verl's own checkpoints, on one CPU: what a run's settings have it save can be resumed, and loaded by Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path, get_checkpoint_tracker_filename
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.config import omega_conf_to_dataclass

from agentcore_rl_toolkit.backends.verl.backend import VerlSettings
from agentcore_rl_toolkit.backends.verl.compose import compose_config
from agentcore_rl_toolkit.backends.verl.overrides import run_overrides
from agentcore_rl_toolkit.engine.checkpoints import resolve_model, verl_step
from agentcore_rl_toolkit.engine.tiny import path as tiny


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_runs_folder_stands_for_weights_that_verl_saved(tmp_path: Path) -> None:
    settings = VerlSettings(agent="rl_app.py", data=str(tmp_path / "rows.jsonl"), output=str(tmp_path / "run"), keep=2)
    config = compose_config(run_overrides(settings))
    model = AutoModelForCausalLM.from_pretrained(str(tiny()), dtype=torch.float32)
    with torch.no_grad():
        model.model.norm.weight.add_(0.25)
    trained = model.model.norm.weight.detach().clone()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.AdamW(model.parameters())
    asked = omega_conf_to_dataclass(config.actor_rollout_ref.actor.checkpoint)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    tokenizer = AutoTokenizer.from_pretrained(str(tiny()))
    manager = FSDPCheckpointManager(model, optimizer, schedule, tokenizer, asked)

    checkpoints = Path(config.trainer.default_local_dir)
    for step in (5, 10, 15):
        place = checkpoints / f"global_step_{step}" / "actor"
        manager.save_checkpoint(str(place), None, step, max_ckpt_to_keep=config.trainer.max_actor_ckpt_to_keep)
        Path(get_checkpoint_tracker_filename(str(checkpoints))).write_text(str(step))  # as verl's trainer does
    kept = sorted(path.parent.name for path in checkpoints.glob("global_step_*/actor"))
    assert kept == ["global_step_10", "global_step_15"]
    latest = find_latest_ckpt_path(str(checkpoints))
    assert (latest, verl_step(checkpoints)) == (str(checkpoints / "global_step_15"), 15)
    manager.load_checkpoint(f"{latest}/actor")

    found = resolve_model(settings.output)
    assert found == f"{latest}/actor/huggingface"
    again = AutoModelForCausalLM.from_pretrained(found, dtype=torch.float32)
    assert torch.equal(again.model.norm.weight, trained)
    assert AutoTokenizer.from_pretrained(found).get_vocab() == tokenizer.get_vocab()
