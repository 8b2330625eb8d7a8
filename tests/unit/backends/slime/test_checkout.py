"""A real checkout of slime, where SLIME_DIR names one: its parser, data source, conversion and schedule."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentcore_rl_toolkit.backends.slime import SlimeRunner
from agentcore_rl_toolkit.backends.slime.backend import write_rows
from agentcore_rl_toolkit.backends.slime.convert import flatten, payload_of, to_placeholder, to_samples
from agentcore_rl_toolkit.backends.slime.rewards import post_process
from agentcore_rl_toolkit.gateway.record.trajectory import RouteTable
from support.rollouts import failed, make_group, make_rollout, make_row, weighted
from support.slime import CHECKOUT, arguments, sample, source_group
from support.slime.absent import stand_in
from support.tokenizers import make_tokenizer

pytestmark = [
    pytest.mark.skipif(CHECKOUT is None, reason="SLIME_DIR names no checkout"),
    pytest.mark.filterwarnings("ignore"),  # slime's and its dependencies'
]


@pytest.fixture(autouse=True)
def importable() -> None:
    stand_in()


@pytest.fixture
def model(tmp_path: Path) -> str:
    make_tokenizer(template="{{ messages }}").save_pretrained(tmp_path / "model")
    config = {"model_type": "qwen2", "num_hidden_layers": 24, "hidden_size": 896}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    return str(tmp_path / "model")


def manager(args: Any, dp: int = 2) -> Any:
    """slime's rollout manager without its servers."""
    from slime.ray.rollout import RolloutManager

    made = object.__new__(RolloutManager.__ray_metadata__.modified_class)
    made.args = args
    made.custom_reward_post_process_func = post_process
    made.custom_convert_samples_to_train_data_func = None
    made.train_parallel_config = {"dp_size": dp, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    return made


def step() -> tuple[Any, list[list[list[Any]]]]:
    """Two groups of three: one rollout of three rows, one that failed."""
    rows = weighted(make_row([1], [2, 3, 4], [1, 0, 1]), make_row([5, 6], [7]), make_row([8], [9, 10]))
    groups = [
        make_group(make_rollout(1.0, *rows), make_rollout(0.0, make_row([1], [11])), make_rollout(0.5)),
        make_group(make_rollout(1.0), failed(), make_rollout(0.0), index=1),
    ]
    samples = [to_samples(group, source_group(3, group.index), str) for group in groups]
    args = arguments(rollout_batch_size=2, n_samples_per_prompt=3, global_batch_size=6, log_passrate=False)
    return args, samples


def test_its_parser_takes_our_flags(model: str, tmp_path: Path) -> None:
    from slime.utils.arguments import get_slime_extra_args_provider

    (tmp_path / "rows.jsonl").write_text('{"prompt": "q"}\n' * 8)
    (tmp_path / "rl_app.py").write_text("")
    plan = SlimeRunner(
        agent=str(tmp_path / "rl_app.py"),
        data=str(tmp_path / "rows.jsonl"),
        eval_data=str(tmp_path / "rows.jsonl"),
        model=model,
        model_type="qwen2.5-0.5B",
        rows_per_step=8,
        context_limit=4096,
        rollout_gpus=2,
        output=str(tmp_path / "run"),
    ).plan(num_rollout=7)
    parser = get_slime_extra_args_provider()(argparse.ArgumentParser(allow_abbrev=False))
    args, others = parser.parse_known_args(plan.command[4:])
    assert (args.num_rollout, args.rollout_batch_size, args.global_batch_size) == (7, 8, 64)
    assert args.eval_prompt_data == ["held-out", str(tmp_path / "run" / "slime" / "held-out.jsonl")]
    assert (args.use_dynamic_batch_size, args.use_tis, args.colocate) == (True, True, False)
    assert args.rollout_function_path.endswith("slime.rollout.generate_rollout")
    noted = next(note for note in plan.notes if "left to Megatron" in note)
    script = {word for word in plan.command[4:] if word.startswith("--")}
    unknown = {word for word in others if word.startswith("--")}
    assert {name for name in unknown if name in noted} == unknown - (script - set(noted.replace(",", "").split()))


def test_its_data_source_reads_our_rows(model: str, tmp_path: Path) -> None:
    from slime.rollout.data_source import RolloutDataSourceWithBuffer

    payloads = [{"prompt": f"q{i}", "tools": ["x"], "metadata": {"deep": i}} for i in range(3)]
    write_rows(tmp_path / "data.jsonl", payloads)
    args = arguments(
        rollout_global_dataset=True,
        prompt_data=str(tmp_path / "data.jsonl"),
        hf_checkpoint=model,
        dump_details=None,
        rollout_max_prompt_len=64,
        multimodal_keys=None,
        label_key=None,
        tool_key="tools",
        apply_chat_template=False,
        apply_chat_template_kwargs=None,
        rollout_seed=1,
        rollout_shuffle=False,
        buffer_filter_path=None,
    )
    groups = RolloutDataSourceWithBuffer(args).get_samples(4)
    assert [payload_of(group[0]) for group in groups] == [*payloads, payloads[0]]
    assert [[one.index for one in group] for group in groups] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_its_checks_take_our_samples() -> None:
    from slime.observability.rollout_data_utils import (
        validate_rollout_id_annotated,
        validate_rollout_routed_experts_for_replay,
    )

    validate_rollout_id_annotated(step()[1])
    table = RouteTable(np.arange(1, 31, dtype=np.int32).reshape(5, 6), np.ones(5, np.uint8))
    routed = to_samples(make_group(make_rollout(1.0, make_row(routes=table))), [sample()], str, (3, 2))
    nothing = to_placeholder(failed(), sample(), 0, 0.0, (3, 2))
    args = arguments(num_layers=3, moe_router_topk=2, moe_layer_freq=[1, 1, 1])
    routes = [one.rollout_routed_experts for one in (*flatten(routed), nothing)]
    validate_rollout_routed_experts_for_replay(routes, args)
    for one in (*flatten(routed), nothing):
        one._validate_response_metadata_lengths()


@pytest.mark.usefixtures("ray_cluster")
def test_its_trainer_gets_every_rollout_once() -> None:
    import ray

    args, samples = step()
    made = manager(args)
    data = made._convert_samples_to_train_data(flatten(samples))
    assert data["rollout_ids"] == [0, 0, 0, 1, 2, 3, 4]
    assert data["rollout_mask_sums"] == [5, 5, 5, 1, 2, 2, 2], "a rollout's rows are averaged over together"
    assert data["raw_reward"] == [1.0, 1.0, 1.0, 0.0, 0.5, 1.0, 0.0]
    assert data["rewards"][:5] == pytest.approx([1, 1, 1, -1, 0], abs=1e-5)
    assert data["rewards"][5:] == pytest.approx([0.7071, -0.7071], abs=1e-3)
    assert args.global_batch_size == 5
    parts = [ray.get(box.inner) for box in made._split_train_data_by_dp(data)]
    assert [part["global_batch_sizes"] for part in parts] == [[5], [5]], "the failed one is in no update"
    assert sorted(place for part in parts for place in part["partition"]) == list(range(7))


@pytest.mark.usefixtures("ray_cluster")
def test_a_failed_rollout_of_its_own_loop_is_in_no_divisor() -> None:
    import ray

    args, samples = step()
    with_failed = flatten(samples)
    with_failed.insert(6, to_placeholder(failed(), source_group(3, 1)[1], 0, 0.0))
    data = manager(args)._convert_samples_to_train_data(with_failed)
    assert data["loss_masks"][6] == [0]
    assert data["rollout_ids"][6] == data["rollout_ids"][5], "a masked row of another rollout"
    without = manager(step()[0])._convert_samples_to_train_data(flatten(step()[1]))
    for name in ("rewards", "rollout_mask_sums", "rollout_ids"):
        assert data[name][:6] + data[name][7:] == without[name]
    parts = [ray.get(box.inner) for box in manager(args)._split_train_data_by_dp(data)]
    assert [part["global_batch_sizes"] for part in parts] == [[5], [5]]
    assert sorted(place for part in parts for place in part["partition"]) == list(range(8))
