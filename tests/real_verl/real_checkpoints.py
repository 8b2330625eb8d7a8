"""verl's own weights, on one CPU: its checkpoints can be resumed and loaded, and its sampler gets the policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path, get_checkpoint_tracker_filename
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name

from agentcore_rl_toolkit.backends.verl.backend import VerlSettings, convert_adapter
from agentcore_rl_toolkit.backends.verl.compose import compose_config
from agentcore_rl_toolkit.backends.verl.overrides import run_overrides
from agentcore_rl_toolkit.engine.checkpoints import resolve_model, verl_step
from agentcore_rl_toolkit.engine.tiny import path as tiny
from agentcore_rl_toolkit.engine.transformers.model_runner import load


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


@pytest.mark.usefixtures("alone")
def test_merged_weights_are_the_adapters_policy() -> None:
    """`lora.merge` sends these to the sampler; afterwards the adapter is trained as before."""
    token_ids = torch.arange(20)[None]
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(str(tiny()), dtype=torch.float32),
        LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.02)
    with torch.no_grad():
        expected = model(token_ids).logits
    mesh = init_device_mesh("cpu", (1,))
    for layer in model.get_submodule("base_model.model.model.layers").children():  # as verl shards
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with merged_lora_context(model, backup_adapters=True):
        weights = normalize_peft_param_name(model.state_dict())
        sent = {
            name: (weight.full_tensor() if isinstance(weight, DTensor) else weight).clone()
            for name, weight in weights.items()
        }
    sampler = AutoModelForCausalLM.from_pretrained(str(tiny()), dtype=torch.float32)
    assert not any(sampler.load_state_dict(sent, strict=True))
    with torch.no_grad():
        assert torch.allclose(sampler(token_ids).logits, expected, atol=1e-4)
        assert torch.equal(model(token_ids).logits, expected)


@pytest.mark.usefixtures("alone")
def test_a_runs_folder_stands_for_an_adapter_that_verl_saved(tmp_path: Path) -> None:
    token_ids = torch.arange(20)[None]
    lora = {"actor_rollout_ref.model.lora_rank": 4}
    data = str(tmp_path / "rows.jsonl")
    settings = VerlSettings(agent="rl_app.py", data=data, output=str(tmp_path / "run"), options=lora)
    config = compose_config(run_overrides(settings))
    base = AutoModelForCausalLM.from_pretrained(str(tiny()), dtype=torch.float32)
    with torch.no_grad():
        untrained = base(token_ids).logits
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.05)
    with torch.no_grad():
        expected = model(token_ids).logits
    for layer in model.get_submodule("base_model.model.model.layers").children():
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)))
    optimizer = torch.optim.AdamW(model.parameters())
    asked = omega_conf_to_dataclass(config.actor_rollout_ref.actor.checkpoint)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    tokenizer = AutoTokenizer.from_pretrained(str(tiny()))
    checkpoints = Path(config.trainer.default_local_dir)
    manager = FSDPCheckpointManager(model, optimizer, schedule, tokenizer, asked)
    manager.save_checkpoint(str(checkpoints / "global_step_3" / "actor"), None, 3)
    Path(get_checkpoint_tracker_filename(str(checkpoints))).write_text("3")

    convert_adapter(checkpoints, str(tiny()))
    found = resolve_model(settings.output)
    assert found == str(checkpoints / "global_step_3" / "actor" / "lora_adapter")
    assert {path.name for path in Path(found).parent.iterdir() if path.is_dir()} == {"huggingface", "lora_adapter"}
    with torch.no_grad():
        logits = load(found, "cpu", torch.float32)(token_ids).logits
    assert (logits - expected).abs().max() < 0.1 * (untrained - expected).abs().max()  # verl converts to bfloat16
    assert AutoTokenizer.from_pretrained(found).get_vocab() == tokenizer.get_vocab()
