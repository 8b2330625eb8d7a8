"""verl from its prompts to its advantages: manager, worker, queue, replay buffer, all but engines."""

from __future__ import annotations

import json
import math
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray
import transfer_queue as tq
from scripted import ScriptedClient
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from agentcore_rl_toolkit.backends.verl.backend import VerlSettings
from agentcore_rl_toolkit.backends.verl.compose import compose_config
from agentcore_rl_toolkit.backends.verl.data import JsonlRows
from agentcore_rl_toolkit.backends.verl.figures import run_figures
from agentcore_rl_toolkit.backends.verl.manager import AgentCoreManager
from agentcore_rl_toolkit.backends.verl.overrides import translate
from agentcore_rl_toolkit.engine.tiny import path as tiny
from agentcore_rl_toolkit.errors import RolloutsStopped
from agentcore_rl_toolkit.rollout import read_rollouts
from agentcore_rl_toolkit.rollout.run_folder.process_totals import read_totals
from support.runtime import eventually

pytestmark = pytest.mark.usefixtures("queue")

STEP = 5


def config_of(agent: Path, folder: Path, *more: str) -> Any:
    return compose_config(
        translate(
            [
                "actor_rollout_ref.rollout.name=agentcore",
                f"actor_rollout_ref.rollout.agentcore.agent_runtime_arn={agent}",
                f"actor_rollout_ref.rollout.agentcore.s3_bucket={folder / 'results'}",
                f"actor_rollout_ref.rollout.agentcore.output={folder}",
                f"actor_rollout_ref.model.path={tiny()}",
                "actor_rollout_ref.rollout.n=3",
                "actor_rollout_ref.rollout.temperature=0.7",
                "actor_rollout_ref.rollout.val_kwargs.n=2",
                "actor_rollout_ref.rollout.enable_rollout_routing_replay=true",
                "actor_rollout_ref.actor.ppo_mini_batch_size=2",
                "trainer.v1.sampler.sync_refill_failed_groups=false",
                "data.seed=1",
                "trainer.n_gpus_per_node=1",
                *more,
            ]
        )
    )


class Run:
    """A manager with one worker, and what verl's trainer does around it."""

    def __init__(self, config: Any, client: ScriptedClient) -> None:
        self.config = config
        self.manager = AgentCoreManager.create(
            config=config, llm_client=client, teacher_client=None, reward_loop_worker_handles=None
        )
        self.trainer_mode = "sync"
        self.buffer: ReplayBuffer = PPOTrainer._build_replay_buffer(self)
        self.buffer.poll_interval = 0.1

    def _resolve_filter_groups_metric(self) -> None:
        """Part of verl's trainer, as far as the sampler needs one."""

    def _add_prompts_to_generate(self, count: int) -> None:
        """Part of verl's trainer, too."""

    @property
    def worker(self) -> Any:
        return self.manager.agent_loop_workers[0]

    def submit(self, rows: list[dict[str, Any]], *, validate: bool = False) -> dict[str, str]:
        """As the trainer submits prompts; gives the rows' names by uid."""
        batch = collate_fn(rows)
        batch["uid"] = np.array([str(uuid.uuid4()) for _ in rows], dtype=object)
        made = tu.get_tensordict(batch)
        tu.assign_non_tensor_data(made, "global_steps", STEP)
        if validate:
            tu.assign_non_tensor_data(made, "validate", True)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": STEP} for _ in rows]
        partition = "val" if validate else "train"
        tq.kv_batch_put(keys=list(made["uid"]), partition_id=partition, tags=tags)
        self.manager.generate_sequences(made)
        return {str(uid): row["payload"]["id"] for uid, row in zip(batch["uid"], rows, strict=True)}

    def sample(self, count: int, *, validate: bool = False) -> Any:
        batch, _ = self.buffer.sample(STEP, "val" if validate else "train", count)
        return batch

    def advantages(self, batch: Any) -> dict[str, list[float]]:
        """verl's, by key, as its trainer computes them."""
        data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["rollout_log_probs"])
        data["old_log_probs"] = data.pop("rollout_log_probs")
        tq.kv_batch_put(batch.keys, batch.partition_id, fields=data)
        PPOTrainer._compute_advantage(SimpleNamespace(config=self.config), batch, {})
        found = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=["advantages"])["advantages"]
        return {key: row.tolist() for key, row in zip(batch.keys, found, strict=True)}

    def statuses(self, partition: str = "train") -> dict[str, str]:
        """Of the prompts, by uid."""
        known = (tq.kv_list(partition) or {}).get(partition, {})
        return {key: tag["status"] for key, tag in known.items() if tag.get("is_prompt")}

    def close(self) -> None:
        ray.get(self.worker.close.remote())
        ray.kill(self.worker)


LINES = {
    "row-a": ["1", "over", "0"],  # a rollout of two rows
    "row-b": ["raise", "2", "0"],  # one fails
    "row-c": ["raise", "raise", "1"],  # too few to compare
    "row-d": ["vanish", "1", "go on", "0", "0"],  # one is run again; one of two turns
    "row-e": ["1", "raise"],  # held out
    "row-v": ["nan", "nan"],  # held out, and rewards that are no numbers
    "row-g": ["1", "over", "0"],
    "row-h": ["over", "over", "over"],
    "row-i": ["over", "over", "1"],
    **{f"row-f{i}": ["raise"] * 3 for i in range(6)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def run(agent: Path, folder: Path) -> Iterator[Run]:
    run = Run(config_of(agent, folder), ScriptedClient(str(tiny()), LINES, experts=True))
    yield run
    run.close()


def rows(folder: Path, *names: str) -> list[dict[str, Any]]:
    """As verl's data loader takes them from a file."""
    file = folder / "rows.jsonl"
    file.write_text("".join(f'{{"id": "{name}", "prompt": "row-{name}", "answer": "4"}}\n' for name in names))
    data = JsonlRows([str(file)])
    return [data[i] for i in range(len(data))]


def by_session(batch: Any, names: dict[str, str]) -> dict[str, dict[int, list[str]]]:
    """The batch's keys by the names of rows, and by session."""
    found: dict[str, dict[int, list[str]]] = {}
    for key in sorted(batch.keys):
        uid, session, _ = key.rsplit("_", 2)
        found.setdefault(names[uid], {}).setdefault(int(session), []).append(key)
    return found


def fields(batch: Any, *names: str) -> dict[str, dict[str, Any]]:
    """What verl's queue holds of a batch: by key, and by field."""
    data = tq.kv_batch_get(batch.keys, batch.partition_id, select_fields=list(names))
    values = {name: [getattr(value, "data", value) for value in data.get(name)] for name in names}
    return {key: {name: values[name][i] for name in names} for i, key in enumerate(batch.keys)}


def test_groups_reach_verls_advantages(run: Run, folder: Path) -> None:
    names = run.submit(rows(folder, "a", "b", "c", "d"))
    batch = run.sample(4)
    found = by_session(batch, names)
    sessions = {name: sorted(len(keys) for keys in found[name].values()) for name in found}
    assert sessions == {"a": [1, 1, 2], "b": [1, 1], "d": [1, 1, 1]}  # nothing of c, nor of what failed
    assert optimizer_steps(run, batch) == 2, "two rows of a data set an update, as configured"

    known = fields(batch, "rm_scores", "response_mask", "loss_mask", "responses", "rollout_log_probs")
    rewards = {key: float(one["rm_scores"].sum()) for key, one in known.items()}
    advantages = run.advantages(batch)
    assert sorted(rewards[keys[0]] for keys in found["a"].values()) == [0.0, 0.5, 1.0]
    for of_row in found.values():
        scores = [rewards[keys[0]] for keys in of_row.values()]  # each rollout once
        for keys in of_row.values():
            above = (rewards[keys[0]] - np.mean(scores)) / (np.std(scores, ddof=1) + 1e-6)
            for key in keys:
                mask = known[key]["response_mask"].tolist()
                assert advantages[key] == pytest.approx([above * bit for bit in mask], abs=1e-4)
    for one in known.values():
        ids, mask = one["responses"].tolist(), one["response_mask"].tolist()
        expected = [-0.01 * (token % 97 + 1) if bit else 0.0 for token, bit in zip(ids, mask, strict=True)]
        assert one["rollout_log_probs"].tolist() == pytest.approx(expected)
        assert one["loss_mask"].tolist() == mask
    assert len([one for one in known.values() if 0 in one["response_mask"]]) == 1  # a message between two replies


def optimizer_steps(run: Run, batch: Any) -> int:
    """In how many updates verl would train on these rows: it fills the last one up with padding."""
    trainer = SimpleNamespace(config=run.config, use_critic=False, global_steps=STEP)
    return math.ceil(len(batch.keys) / PPOTrainer._get_required_batch_multiple(trainer, 1))


def test_more_rows_than_rollouts_make_no_further_update(run: Run, folder: Path) -> None:
    run.submit(rows(folder, "h", "i"))
    batch = run.sample(2)
    assert len(batch.keys) == 11, "of six rollouts"
    assert optimizer_steps(run, batch) == 1


def test_small_batches_go_to_all_workers(run: Run, folder: Path) -> None:
    """A refill is a batch of one prompt, which verl would always give to its first worker."""
    given: list[str] = []

    def worker(name: str) -> Any:
        def remote(chunk: Any) -> Any:
            given.extend([name] * len(chunk))
            return ray.put(None)

        return SimpleNamespace(generate_sequences=SimpleNamespace(remote=remote))

    real = run.manager.agent_loop_workers
    run.manager.agent_loop_workers = [worker(name) for name in "xyz"]
    try:
        for names in ("f0", "f1", "f2", "f3"):
            run.submit(rows(folder, names))
        run.submit(rows(folder, "f4", "f5", "a"))
    finally:
        run.manager.agent_loop_workers = real
        tq.kv_clear(partition_id="train", keys=list(run.statuses()))
    assert given == ["x", "y", "z", "x", "y", "z", "x"]


def test_versions_turn_rewards_and_routes_are_passed_on(run: Run, folder: Path) -> None:
    run.submit(rows(folder, "g"))
    batch = run.sample(1)
    known = fields(batch, "extra_fields", "routed_experts", "input_ids")
    extra = [one["extra_fields"] for one in known.values()]
    assert {(one["min_global_steps"], one["max_global_steps"]) for one in extra} == {(4, 4)}
    assert [one["turn_scores"] for one in extra if one["turn_scores"]] == [[0.0, 0.5]] * 2
    assert all(tag["min_global_steps"] == tag["max_global_steps"] == 4 for tag in batch.tags)
    for one in known.values():
        length = len(one["input_ids"])
        expected = np.arange((length - 1) * 6).reshape(length - 1, 3, 2) % 8
        assert one["routed_experts"][:-1].tolist() == expected.tolist()


def test_a_validation_counts_the_agents_failures(run: Run, folder: Path) -> None:
    names = run.submit(rows(folder, "e"), validate=True)
    batch = run.sample(1, validate=True)
    assert [len(keys) for keys in by_session(batch, names)["e"].values()] == [1, 1]
    known = fields(batch, "rm_scores", "num_turns", "data_source", "reward_model", "extra_fields")
    assert sorted(float(one["rm_scores"].sum()) for one in known.values()) == [0.0, 1.0]
    assert sorted(one["extra_fields"]["status"] for one in known.values()) == ["agent_error", "completed"]
    assert {one["data_source"] for one in known.values()} == {"rows"}
    assert [one["reward_model"]["ground_truth"] for one in known.values()] == ["4", "4"]


def test_a_validation_without_a_single_reward_ends_the_run(run: Run, folder: Path) -> None:
    run.submit(rows(folder, "v"), validate=True)
    with pytest.raises(RolloutsStopped, match="no held-out rollout could be run and scored"):
        run.sample(1, validate=True)


def test_verl_says_how_to_sample(run: Run) -> None:
    asked = ray.get(run.worker.__ray_call__.remote(lambda worker: worker.llm_client.asked))
    trained = [params for _, params in asked if params["temperature"] == 0.7]  # and not the agent's 0.25
    held_out = [params for _, params in asked if params["temperature"] == 0.0]
    assert (len(held_out), len(trained)) == (4, len(asked) - 4)
    assert all(params["logprobs"] is True and params["max_tokens"] < 1024 for params in trained)
    assert {(params["top_k"], params["top_p"], params["repetition_penalty"]) for _, params in asked} == {(-1, 1.0, 1.0)}
    assert all(("seed" in params) == (params in trained) for _, params in asked if params["temperature"] == 0.7)
    assert len({params["seed"] for params in trained}) == len(trained)
    assert max(Counter(session for session, _ in asked).values()) == 2  # calls of one session go to one server


def test_every_rollout_is_kept(folder: Path, run: Run) -> None:
    files = [folder / "rollouts" / "step-000004.jsonl", *(folder / "evaluations").glob("*.jsonl")]
    kept = Counter(rollout.status.value for file in files for rollout in read_rollouts(file))
    assert kept == {"completed": 19, "agent_error": 4, "reward_error": 2, "session_lost": 1}


def test_every_group_is_counted(folder: Path, run: Run) -> None:
    found = run_figures(VerlSettings(agent="rl_app.py", output=str(folder)), folder / "checkpoints")
    assert (found["rollouts"], found["trained"]) == (22, 17)  # a, b, c, d with one that was run again, and g
    assert found["failures"] == {"agent_error": 3, "session_lost": 1}
    line = json.loads((folder / "metrics.jsonl").read_text())
    assert (line["step"], line["groups/dropped"]) == (STEP, 1)
    assert (found["steps"], found["after"], found["fidelity"]) == (STEP, 0.5, 1.0)
    assert found["used"]["sessions"] in (25, 26)  # held-out rows too; one vanishes before or after it is accepted
    assert found["not_trained_on"][0] == {"cause": "agent_error: ValueError: broken on purpose", "rollouts": 3}


def test_too_many_failures_end_the_run(run: Run, folder: Path) -> None:  # the last one: the worker takes no more
    run.submit(rows(folder, *(f"f{i}" for i in range(6))))
    eventually(lambda: set(run.statuses().values()) == {"failure"}, seconds=60)
    with pytest.raises(RolloutsStopped, match="rollouts in a row could not be trained on"):
        run.submit(rows(folder, "a"))


def test_groups_that_give_nothing_to_train_on_end_the_run(agent: Path, tmp_path: Path) -> None:
    more = ("data.train_batch_size=2", "actor_rollout_ref.rollout.agentcore.max_failures=99")
    lines = {f"row-f{i}": ["raise"] * 3 for i in range(6)}
    run = Run(config_of(agent, tmp_path, *more), ScriptedClient(str(tiny()), lines, experts=True))
    try:
        names = run.submit(rows(tmp_path, *(f"f{i}" for i in range(6))))
        eventually(lambda: read_totals(tmp_path).stopped is not None, seconds=60)
        with pytest.raises(RolloutsStopped, match=r"in 6 groups in a row.*\n +18 × agent_error: ValueError: broken"):
            run.submit(rows(tmp_path, "a"))
        tq.kv_clear(partition_id="train", keys=[*names, *run.statuses()])
    finally:
        run.close()


def test_staleness_counts_from_the_trainers_weights(agent: Path, tmp_path: Path) -> None:
    """The prompts say that the trainer has made four updates."""
    ours = "actor_rollout_ref.rollout.agentcore"
    more = ("data.train_batch_size=2", f"{ours}.max_staleness=1", f"{ours}.env={{SCORE:'***'}}")
    (tmp_path / "session_env.json").write_text('{"SCORE": "0.75"}')  # as the command that starts verl has it
    lines = {"row-old": ["1"] * 50, "row-new": ["1", "0", "env"]}
    run = Run(config_of(agent, tmp_path, *more), ScriptedClient(str(tiny()), lines, experts=True, step=2))
    try:
        run.submit(rows(tmp_path, "old"))
        eventually(lambda: set(run.statuses().values()) == {"failure"}, seconds=60)
        ray.get(run.worker.__ray_call__.remote(lambda worker: setattr(worker.llm_client, "step", 3)))
        names = run.submit(rows(tmp_path, "new"))
        batch = run.sample(2)
        assert len(by_session(batch, names | dict.fromkeys(run.statuses(), "old"))["new"]) == 3
        assert sorted(float(one["rm_scores"].sum()) for one in fields(batch, "rm_scores").values()) == [0.0, 0.75, 1.0]
    finally:
        run.close()
    assert {cause["cause"] for cause in read_totals(tmp_path).causes.figures()} == {"stale"}
