"""Rollouts as slime's samples, and their rewards as advantages."""

from __future__ import annotations

import math
import sys
import types
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentcore_rl_toolkit.backends.slime.backend import slime_row
from agentcore_rl_toolkit.backends.slime.convert import STATUSES, flatten, payload_of, to_placeholder, to_samples
from agentcore_rl_toolkit.backends.slime.rewards import (
    ADVANTAGES,
    fit_batch,
    post_process,
    restore_batch,
    set_advantages,
)
from agentcore_rl_toolkit.gateway.record.trajectory import RouteTable, TurnSpan
from agentcore_rl_toolkit.rollout import Action
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from agentcore_rl_toolkit.types import Status
from support.rollouts import failed, make_group, make_rollout, make_row, weighted
from support.slime import arguments, sample, source_group

CREDIT = TurnCredit()


def decode(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def test_everything_a_sample_has() -> None:
    row = make_row(
        [1, 2], [3, 4, 5, 6], [1, 0, 0, 1], [-0.5, math.nan, math.nan, -0.25], versions=(("7", 2, 3), ("8", 5, 6))
    )
    rollout = make_rollout([0.5, 2.0], row, sample=4)
    source = source_group(2, 3, prompt="hi", raw_reward=9, round_number=1)
    ((made,),) = to_samples(make_group(rollout), source, decode)
    assert (made.tokens, made.response, made.response_length) == ([1, 2, 3, 4, 5, 6], "3 4 5 6", 4)
    assert made.loss_mask == [1, 0, 0, 1]
    assert made.rollout_log_probs == [-0.5, 0.0, 0.0, -0.25]
    assert (made.reward, made.remove_sample, made.rollout_routed_experts) == (2.0, False, None)
    assert made.weight_versions == ["7", "8"]
    assert (made.group_index, made.index, made.rollout_id) == (3, 6, 6)
    assert made.status is type(made).Status.COMPLETED
    assert made.session_id == "session-4"
    assert made.metadata == {
        "prompt": "hi",
        "agentcore": {
            "input_id": "row-1",
            "session_id": "session-4",
            "status": "completed",
            "rewards": [0.5, 2.0],
            "why": None,
            "row": 0,
            "rows": 1,
        },
    }
    assert source[0].tokens == [], "what the data source has is left as it is"


def test_rows_of_a_rollout_share_its_id() -> None:
    rows = weighted(make_row([1], [2]), make_row([3], [4, 5]))
    group = make_group(make_rollout(1.0, *rows), make_rollout(0.0, sample=1))
    samples = to_samples(group, source_group(2, 1), decode)
    assert [[made.rollout_id for made in rollout] for rollout in samples] == [[2, 2], [3]]
    assert [made.metadata["agentcore"]["row"] for made in samples[0]] == [0, 1]


def test_an_id_that_slime_has_given_is_kept() -> None:
    source = [sample(index=4, rollout_id=11)]
    assert to_samples(make_group(make_rollout()), source, decode)[0][0].rollout_id == 11


def test_what_is_not_trained_on_is_no_sample() -> None:
    group = make_group(failed(), make_rollout(), replace(make_rollout(), action=Action.MASK))
    assert [made.rollout_id for made in flatten(to_samples(group, source_group(3), decode))] == [0]
    assert to_samples(replace(group, dropped="incomplete"), source_group(3), decode) == []


def test_a_reply_that_was_cut_off_is_truncated() -> None:
    row = replace(make_row(), spans=(TurnSpan(0, 3, 4, True, "stop"), TurnSpan(1, 4, 5, True, "length")))
    ((made,),) = to_samples(make_group(make_rollout(1.0, row)), [sample()], decode)
    assert made.status is type(made).Status.TRUNCATED


@pytest.mark.parametrize(("status", "theirs"), list(STATUSES.items()))
def test_statuses(status: Status, theirs: str) -> None:
    rollout = replace(make_rollout(), status=status)
    ((made,),) = to_samples(make_group(rollout), [sample()], decode)
    assert made.status.name == theirs
    masked = to_placeholder(failed(status), sample(), 9, 0.0)
    assert masked.status.name == ("FAILED" if theirs == "COMPLETED" else theirs)


def test_every_status_has_one_of_slimes() -> None:
    assert set(STATUSES) == set(Status)


def test_a_place_for_nothing() -> None:
    made = to_placeholder(failed(), sample(index=5), 9, -1.0, (3, 2))
    assert (made.tokens, made.response_length, made.loss_mask, made.rollout_log_probs) == ([9, 9], 1, [0], [0.0])
    assert (made.remove_sample, made.reward, made.rollout_id) == (True, -1.0, 5)
    assert np.shape(made.rollout_routed_experts) == (1, 3, 2)
    assert all(np.count_nonzero(layer) for layer in made.rollout_routed_experts[0])
    assert to_placeholder(None, sample(), 9, 0.0).status.name == "ABORTED"


def routed(known: list[int], width: int = 6) -> Any:
    numbers = np.arange(5 * width, dtype=np.int32).reshape(5, width)
    return make_rollout(1.0, make_row(routes=RouteTable(numbers, np.array(known, np.uint8))))


def test_routes_of_all_tokens_but_the_last() -> None:
    ((made,),) = to_samples(make_group(routed([1, 1, 1, 1, 0])), [sample()], decode, (3, 2))
    assert made.rollout_routed_experts.shape == (4, 3, 2)
    assert made.rollout_routed_experts.reshape(-1).tolist() == list(range(24))


@pytest.mark.parametrize("rollout", [routed([1, 0, 1, 1, 0]), routed([1] * 5, width=4), make_rollout()])
def test_a_rollout_whose_routes_are_not_all_known_is_not_replayed(rollout: Any) -> None:
    assert to_samples(make_group(rollout), [sample()], decode, (3, 2)) == []
    assert len(to_samples(make_group(rollout), [sample()], decode)) == 1


def test_slimes_trainer_takes_the_advantages_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """With context parallelism each rank keeps its own tokens; slime's figures get one number for each sample."""
    torch = pytest.importorskip("torch")
    module = types.ModuleType("slime.backends.megatron_utils.cp_utils")
    module.slice_log_prob_with_cp = lambda values, total, response: values[:2]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    data: dict[str, Any] = {"rewards": [[1.0, 2.0, 6.0], [0.0, -1.0]], "total_lengths": [5, 4]}
    data |= {"response_lengths": [3, 2], "kl": [torch.zeros(2), torch.zeros(2)]}
    set_advantages(arguments(), data)
    assert [values.tolist() for values in data["advantages"]] == [[1.0, 2.0], [0.0, -1.0]]
    assert [values.tolist() for values in data["returns"]] == [[1.0, 2.0], [0.0, -1.0]]
    assert data["rewards"] == [3.0, -0.5]


def test_with_turn_credit_a_removed_sample_has_no_advantage() -> None:
    samples = flatten(
        to_samples(make_group(make_rollout(1.0), make_rollout(0.0, sample=1)), source_group(2), decode, None, CREDIT)
    )
    samples[1].remove_sample = True
    _, advantages = post_process(arguments(custom_advantage_function_path=ADVANTAGES), samples)
    assert advantages[1] == [0.0, 0.0]


# Data


def test_payloads_there_and_back() -> None:
    payload = {"prompt": "2+2?", "answer": "4", "metadata": {"x": 1}}
    row = slime_row(payload)
    assert row["prompt"] == [{"role": "user", "content": "2+2?"}]
    assert payload_of(sample(**row)) == payload
    assert slime_row({"task": 7})["prompt"] == [{"role": "user", "content": '{"task": 7}'}]


def test_a_sample_of_ones_own_data() -> None:
    assert payload_of(sample(prompt="hi", metadata={})) == {"prompt": "hi"}
    assert payload_of(sample(metadata={"answer": 1, "agentcore": {"row": 0}})) == {"answer": 1}


# Rewards


def made(group: int, rollout: int | None, reward: float, *, removed: bool = False) -> Any:
    return sample(group_index=group, rollout_id=rollout, reward=reward, remove_sample=removed)


def test_a_rollout_counts_once_and_a_failed_one_not_at_all() -> None:
    samples = [
        *(made(0, 0, 4.0), made(0, 0, 4.0), made(0, 0, 4.0)),
        *(made(0, 1, 0.0), made(0, 2, 9.0, removed=True)),
        *(made(1, 3, 1.0), made(1, 4, 1.0)),
    ]
    raw, advantages = post_process(arguments(), samples)
    assert raw == [4.0, 4.0, 4.0, 0.0, 9.0, 1.0, 1.0]
    one = 2 / (8**0.5 + 1e-6)  # the mean of 4 and 0 is 2, their spread as slime takes it the root of 8
    assert advantages == pytest.approx([one, one, one, -one, 0.0, 0.0, 0.0])


def shares(args: Any, samples: list[Any]) -> list[float]:
    """What slime's loss makes of each sample: its part of its rollout's tokens, over the number of rollouts.

    slime cuts a step into updates of `global_batch_size` rollouts, in the order of their ids' first samples.
    """
    masks = [0 if one.remove_sample else sum(one.loss_mask) for one in samples]
    tokens: dict[Any, int] = {}
    for one, mask in zip(samples, masks, strict=True):
        tokens[one.rollout_id] = tokens.get(one.rollout_id, 0) + mask
    assert len(tokens) == args.global_batch_size, "in one update"
    size = args.global_batch_size
    return [mask / max(1, tokens[one.rollout_id]) / size for one, mask in zip(samples, masks, strict=True)]


def test_a_failed_rollout_takes_nothing_from_the_others() -> None:
    """Where slime's own loop wants a sample for every slot, the loss is what it would be without it."""

    def step(*, failed_ones: bool) -> tuple[Any, list[Any]]:
        args = arguments(rollout_batch_size=3, n_samples_per_prompt=3, global_batch_size=9)
        lines = [(0, 0, [1, 1], 1.0), (0, 0, [1], 1.0), (0, 1, [1, 1, 1], 0.0), (1, 3, [1], 1.0), (1, 4, [1], 0.0)]
        lost = [(0, 2), (1, 5), (2, 6), (2, 7)]
        samples = [
            sample(group_index=group, rollout_id=rollout, reward=reward, loss_mask=list(mask))
            for group, rollout, mask, reward in lines
        ]
        if failed_ones:
            for group, rollout in lost:
                nothing = sample(group_index=group, rollout_id=rollout, reward=0.0, loss_mask=[0], remove_sample=True)
                samples.insert(0 if rollout == 2 else len(samples), nothing)
            samples.append(sample(group_index=2, rollout_id=8, reward=1.0, loss_mask=[1, 1]))  # alone, so not compared
        return args, samples

    (args, samples), (plain_args, plain) = step(failed_ones=True), step(failed_ones=False)
    _, advantages = post_process(args, samples)
    _, expected = post_process(plain_args, plain)
    found = zip((one.rollout_id for one in samples), shares(args, samples), advantages, strict=True)
    wanted = zip((one.rollout_id for one in plain), shares(plain_args, plain), expected, strict=True)
    assert [told for told in found if told[1]] == list(wanted)
    assert args.global_batch_size == plain_args.global_batch_size == 4


def test_a_step_in_which_all_failed() -> None:
    args = arguments()
    samples = [made(0, 0, 0.0, removed=True), made(0, 1, 0.0, removed=True)]
    assert post_process(args, samples)[1] == [0.0, 0.0]
    assert (args.global_batch_size, [one.rollout_id for one in samples]) == (2, [0, 1])


def test_a_group_of_one_is_nobodys_failure() -> None:
    (alone,) = samples = [made(0, 0, 3.0)]
    post_process(arguments(), samples)
    assert not alone.remove_sample


def test_groups_are_slimes_wherever_their_samples_are() -> None:
    samples = [made(0, 0, 0.0), made(1, 1, 5.0), made(0, 2, 2.0), made(1, 3, 5.0)]
    _, advantages = post_process(arguments(grpo_std_normalization=False), samples)
    assert advantages == [-1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"advantage_estimator": "ppo"}, [3.0, 1.0, 0.0]),
        ({"rewards_normalization": False}, [3.0, 1.0, 0.0]),
        ({"advantage_estimator": "reinforce_plus_plus_baseline"}, [1.0, -1.0, 0.0]),
    ],
)
def test_slimes_flags_decide_how(changes: dict[str, Any], expected: list[float]) -> None:
    samples = [made(0, 0, 3.0), made(0, 1, 1.0), made(0, 2, 7.0, removed=True)]
    raw, advantages = post_process(arguments(**changes), samples)
    assert raw == [3.0, 1.0, 7.0]
    assert advantages == expected


def test_a_rollout_alone_and_samples_without_a_rollout() -> None:
    assert post_process(arguments(), [made(0, 0, 3.0)])[1] == [0.0]
    _, advantages = post_process(arguments(grpo_std_normalization=False), [made(0, None, 0.0), made(0, None, 2.0)])
    assert advantages == [-1.0, 1.0]


def test_a_reward_by_its_key() -> None:
    samples = [sample(rollout_id=i, reward={"score": float(i), "other": 9.0}) for i in range(2)]
    raw, _ = post_process(arguments(reward_key="score"), samples)
    assert raw == [0.0, 1.0]


@pytest.mark.parametrize(
    ("configured", "rollouts", "expected"), [(32, 32, 32), (32, 27, 27), (8, 32, 8), (8, 27, 7), (8, 3, 1)]
)
def test_a_step_is_cut_into_as_many_updates_as_configured(configured: int, rollouts: int, expected: int) -> None:
    args = arguments(rollout_batch_size=4, n_samples_per_prompt=8, global_batch_size=configured)
    for _ in range(2):  # what the step before made of it doesn't matter
        fit_batch(args, rollouts)
        assert args.global_batch_size == expected
    restore_batch(args)
    assert args.global_batch_size == configured


def cut_into_updates(args: Any, samples: list[Any]) -> list[list[Any]]:
    """The rollouts of each update, as slime cuts a step: in the order of their first samples, and no rest."""
    order = list(dict.fromkeys(sample.rollout_id for sample in samples))
    size = args.global_batch_size
    return [order[at : at + size] for at in range(0, len(order) // size * size, size)]


@pytest.mark.parametrize(("rollouts", "updates"), [(255, 16), (200, 16), (256, 16), (17, 16), (5, 16), (31, 3)])
@pytest.mark.parametrize("rows", [1, 3])
def test_every_rollout_is_in_one_of_the_configured_updates_with_its_full_weight(
    rollouts: int, updates: int, rows: int
) -> None:
    args = arguments(rollout_batch_size=16, n_samples_per_prompt=16, global_batch_size=256 // updates)
    samples = [
        sample(group_index=i // 16, rollout_id=i, reward=float(i), loss_mask=[1] * (1 + i % 3))
        for i in range(rollouts)
        for _ in range(rows if i % 2 else 1)
    ]
    plain = {one.rollout_id: one for one in samples}
    _, wanted = post_process(arguments(global_batch_size=None), list(samples))
    advantage_of = dict(zip((one.rollout_id for one in samples), wanted, strict=True))
    raw, advantages = post_process(args, samples)
    assert len(raw) == len(advantages) == len(samples)
    found = dict(zip((one.rollout_id for one in samples), advantages, strict=True))
    cut = cut_into_updates(args, samples)
    assert len(cut) == min(updates, rollouts)
    assert sorted(key for update in cut for key in update if key in plain) == sorted(plain)
    for update in cut:
        real = [key for key in update if key in plain]
        assert len(real) >= args.global_batch_size - 1
        for key in real:  # slime divides by the places of the update
            assert found[key] / args.global_batch_size == pytest.approx(advantage_of[key] / len(real))
    assert all(one.remove_sample == (one.rollout_id not in plain) for one in samples)


def test_a_batch_size_that_slime_does_not_have_yet() -> None:
    args = arguments(global_batch_size=None)
    fit_batch(args, 3)
    restore_batch(args)
    assert args.global_batch_size is None
