"""What reaches TRL's loss is exactly the rollouts; the gradient is the one that they have by hand."""

from __future__ import annotations

import inspect
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
from trl import GRPOConfig, GRPOTrainer

from agentcore_rl_toolkit.backends.loop.mismatch import Truncation
from agentcore_rl_toolkit.backends.settings import MOST_RATIO
from agentcore_rl_toolkit.backends.trl.trainer import AgentGRPOTrainer
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.record.trajectory import Row
from agentcore_rl_toolkit.rollout import Action, Group, Rollout
from agentcore_rl_toolkit.rollout.signal.credit import TurnCredit
from support.backends.trl import LIMIT, Watched, make_model, stepped, tokenizer
from support.process import free_port
from support.rollouts import failed, make_group, make_rollout, make_row, weighted

EPSILON = 0.2  # where TRL clips


def logps(model: Any, row: Row, temperature: float = 1.0) -> torch.Tensor:
    """Of the row's tokens after its prompt, each from those before it."""
    ids = torch.tensor([row.token_ids.tolist()])
    logits = (model(ids).logits[0, :-1] / temperature).log_softmax(-1)
    return logits.gather(1, ids[0, 1:, None])[row.prompt_length - 1 :, 0]


def as_sampled(row: Row, off: float = 0.03) -> Row:
    """The row with the logprobs that the model gives it, a little off, as a sampler's are."""
    with torch.no_grad():
        values = logps(make_model(), row).numpy()
    known = row.logprobs.copy()
    known[row.prompt_length :] = values + off * (-1) ** torch.arange(len(values)).numpy()
    return replace(row, logprobs=known)


def ppo(ratio: torch.Tensor, advantage: Any, mine: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """PPO's loss of each token."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantage)


def cispo(ratio: torch.Tensor, advantage: Any, mine: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """CISPO's."""
    return -ratio.detach().clamp(max=MOST_RATIO) * advantage * mine


def sapo(ratio: torch.Tensor, advantage: Any, mine: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """SAPO's, with TRL's temperatures."""
    steep = torch.where(torch.as_tensor(advantage) > 0, 1.0, 1.05)
    return -4 / steep * torch.sigmoid(steep * (ratio - 1)) * advantage


def vespo(ratio: torch.Tensor, advantage: Any, mine: torch.Tensor, trained: torch.Tensor) -> torch.Tensor:
    """VESPO's, with TRL's exponents: the weight follows from the ratio of the whole row."""
    power, decay = (2.0, 3.0) if advantage >= 0 else (3.0, 2.0)
    of_row = ratio.detach()[trained].prod()
    return -((decay * (1 - of_row)).exp() * of_row**power) * advantage * mine


def compared(group: Group, one: Rollout, row: Row) -> Any:
    """A rollout's advantage over its group."""
    rewards = torch.tensor(group.rewards)
    return (one.reward - rewards.mean()) / (rewards.std() + 1e-4)


def by_hand(
    groups: Sequence[Group],
    reduce: Callable[[list[list[tuple[float, torch.Tensor]]], int], Any],
    token_losses: Callable[..., torch.Tensor] = ppo,
    advantage: Callable[[Group, Rollout, Row], Any] = compared,
) -> Any:
    """The gradient of a loss. `reduce` gets, of each trained rollout, its rows' weights and token losses, and their
    number."""
    model = make_model()
    losses = []
    for group in groups:
        for one in group.trained if group.dropped is None else []:
            rows = []
            for row in one.rows:
                mine = logps(model, row)
                ratio = (mine - torch.tensor(row.logprobs[row.prompt_length :])).exp()
                trained = torch.tensor(row.loss_mask[row.prompt_length :]) == 1
                rows.append((row.weight, token_losses(ratio, advantage(group, one, row), mine, trained)[trained]))
            losses.append(rows)
    reduce(losses, len(losses)).backward()
    return {name: value.grad for name, value in model.named_parameters()}


def assert_same(gradient: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert gradient.keys() == expected.keys()
    assert max(value.abs().max() for value in expected.values()) > 1e-3  # there is something to compare
    for name, value in expected.items():
        torch.testing.assert_close(gradient[name], value, atol=2e-6, rtol=1e-3)


def rollout(reward: float, *rows: Row, off: float = 0.03) -> Rollout:
    return make_rollout(reward, *weighted(*(as_sampled(row, off) for row in rows)))


@cache
def single() -> tuple[Group, ...]:
    """Rollouts of one row each, with tokens of tools between the sampled ones."""
    return (
        make_group(
            rollout(1.0, make_row([5, 6], [7, 8, 9])),
            rollout(0.0, make_row([5, 6], [10, 11, 12, 13, 14], [1, 0, 0, 1, 1])),
            rollout(0.5, make_row([5, 6], [15])),
        ),
        make_group(
            rollout(0.0, make_row([20], [21, 22], [1, 1])),
            rollout(2.0, make_row([20], [23, 24, 25, 26], [1, 1, 0, 1])),
            rollout(0.0, make_row([20], [27])),
        ),
    )


@cache
def several() -> tuple[Group, ...]:
    """One rollout folds into three rows, another into two, of different lengths; the longest is beyond any slot's."""
    return (
        make_group(
            rollout(
                1.0,
                make_row([5, 6], [7, 8, 9]),
                make_row([30, 31, 32, 33, 34], [35], [1]),
                make_row([40], [41, 42, 43, 44, 45, 46, 47], [1, 1, 0, 0, 1, 1, 1]),
            ),
            rollout(0.0, make_row([5, 6], [10, 11, 12, 13, 14], [1, 0, 0, 1, 1])),
            rollout(0.5, make_row([5, 6], [15])),
        ),
        make_group(
            rollout(0.0, make_row([20], [21, 22], [1, 1])),
            rollout(2.0, make_row([20], [23, 24, 25, 26], [1, 1, 0, 1]), make_row([50, 51], [52, 53])),
            failed(),
        ),
    )


def mean_of_rows(losses: list[list[tuple[float, torch.Tensor]]], rollouts: int) -> Any:
    return sum(weight * tokens.mean() for rows in losses for weight, tokens in rows) / rollouts


def mean_of_tokens(losses: list[list[tuple[float, torch.Tensor]]], rollouts: int) -> Any:
    tokens = torch.cat([tokens for rows in losses for _, tokens in rows])
    return tokens.sum() / len(tokens)


def sum_of_tokens(losses: list[list[tuple[float, torch.Tensor]]], rollouts: int) -> Any:
    return sum(tokens.sum() for rows in losses for _, tokens in rows) / rollouts


LOSSES: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "grpo": (mean_of_rows, ppo),
    "dapo": (mean_of_tokens, ppo),
    "luspo": (sum_of_tokens, ppo),
    "dr_grpo": (lambda losses, rollouts: sum_of_tokens(losses, rollouts) / LIMIT, ppo),
    "cispo": (mean_of_tokens, cispo),
    "sapo": (mean_of_rows, sapo),
    "vespo": (mean_of_tokens, vespo),
}


def config_of(loss: str) -> dict[str, Any]:
    return {"loss_type": loss} | ({"epsilon_high": MOST_RATIO} if loss == "cispo" else {})


class AtTemperature(Watched):
    """Fed by a sampler whose logprobs are at the temperature."""

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self.at_temperature = True


# The batch


def test_the_batch_is_exactly_the_rollouts(tmp_path: Path) -> None:
    trainer = stepped(single(), tmp_path)
    expected = []
    for group in single():
        rewards = torch.tensor(group.rewards)
        for one in group.rollouts:
            row, place = one.rows[0], one.rows[0].prompt_length
            mask = row.loss_mask[place:].tolist()
            values = [round(float(v), 4) if bit else 0.0 for v, bit in zip(row.logprobs[place:], mask, strict=True)]
            ids = row.token_ids.tolist()
            advantage = (one.reward - rewards.mean()) / (rewards.std() + 1e-4)
            expected.append((ids[:place], ids[place:], mask, values, pytest.approx(float(advantage), abs=1e-5)))
    assert trainer.seen() == sorted(expected, key=str)


def test_every_row_is_run_once_and_its_group_has_its_slots(tmp_path: Path) -> None:
    groups = [
        make_group(rollout(0.0, make_row([5], [10 + n])), rollout(1.0, make_row([5], [20 + n]))) for n in range(5)
    ]
    trainer = stepped(groups, tmp_path, n=2, batch=5)
    assert sorted(row[1][0] for row in trainer.seen()) == [*range(10, 15), *range(20, 25)]
    assert [row[1][0] >= 20 for row in trainer.seen()] == [row[-1] > 0 for row in trainer.seen()]


def test_the_ratio_is_to_the_sampler_where_its_logprobs_are_the_policys(tmp_path: Path) -> None:
    for batch in stepped(single(), tmp_path).batches:
        assert torch.equal(batch["old_per_token_logps"], batch["sampling_per_token_logps"])
    for batch in stepped(single(), tmp_path, temperature=0.7).batches:
        assert "old_per_token_logps" not in batch
    for batch in stepped(single(), tmp_path, temperature=0.7, kind=AtTemperature).batches:
        assert torch.equal(batch["old_per_token_logps"], batch["sampling_per_token_logps"])


@pytest.mark.parametrize("batch", [6, 3])
def test_every_trained_rows_ratio_to_the_sampler_is_told_whatever_the_order_of_rows(tmp_path: Path, batch: int) -> None:
    """`as_sampled` puts the sampler 0.03 beside the policy, above and below it in turn."""
    groups = [
        replace(group, rollouts=tuple(replace(r, session_id=f"{at}.{n}") for n, r in enumerate(group.rollouts)))
        for at, group in enumerate(several())
    ]
    trainer = stepped(groups, tmp_path, batch=batch, loss_type="dapo")
    trained = {(r.session_id, n): row for group in groups for r in group.trained for n, row in enumerate(r.rows)}
    assert trainer.ratios.keys() == trained.keys()
    for name, row in trained.items():
        signs = [(-1) ** (place + 1) for place in range(len(row.loss_mask) - row.prompt_length)]
        kept = [sign for sign, bit in zip(signs, row.loss_mask[row.prompt_length :], strict=True) if bit]
        assert trainer.ratios[name].tolist() == pytest.approx([0.03 * sign for sign in kept], abs=1e-3)
    apart = stepped(groups, tmp_path, loss_type="dapo", temperature=0.7)
    assert apart.ratios == {}, "these logprobs are of another distribution"


def test_a_masked_rollout_changes_nobodys_advantage(tmp_path: Path) -> None:
    kept = single()[0].rollouts
    masked = make_rollout(-50.0, as_sampled(make_row([5, 6], [16, 17])), action=Action.MASK)
    rewards = torch.tensor([one.reward for one in kept])
    by_reward = {round(float((r - rewards.mean()) / (rewards.std() + 1e-4)), 4) for r in rewards}
    for extra in (masked, failed()):
        trainer = stepped([make_group(*kept, extra)], tmp_path, n=4, loss_type="dapo")
        assert {round(row[-1], 4) for row in trainer.seen()} == by_reward | {0.0}
        empty = [row for row in trainer.seen() if row[-1] == 0.0 and row[2] == [0]]
        assert len(empty) == 1
        assert all(16 not in row[1] for row in trainer.seen())


def test_all_rows_of_a_rollout_are_in_the_batch_with_its_advantage(tmp_path: Path) -> None:
    trainer = stepped(several(), tmp_path, loss_type="dapo")
    rewards = torch.tensor([1.0, 0.0, 0.5])
    advantage = pytest.approx(float((1.0 - rewards.mean()) / (rewards.std() + 1e-4)), abs=1e-5)
    rows = several()[0].rollouts[0].rows
    found = {tuple(row[1]): row for row in trainer.seen()}
    for row in rows:
        completion = row.token_ids.tolist()[row.prompt_length :]
        prompt, _, mask, values, given = found[tuple(completion)]
        assert (prompt, mask, given) == (
            row.token_ids.tolist()[: row.prompt_length],
            row.loss_mask[row.prompt_length :].tolist(),
            advantage,
        )
        expected = [float(v) if bit else 0.0 for v, bit in zip(row.logprobs[row.prompt_length :], mask, strict=True)]
        assert values == pytest.approx(expected, abs=1e-4)
    assert len(trainer.seen()) == 6 + 3


def test_weights_of_rows_count_where_the_loss_is_a_mean_of_rows(tmp_path: Path) -> None:
    trainer = stepped(several(), tmp_path, loss_type="grpo")
    rows = several()[0].rollouts[0].rows
    given = {tuple(row[1]): row[-1] for row in trainer.seen()}
    shares = [given[tuple(row.token_ids.tolist()[row.prompt_length :])] / row.weight for row in rows]
    assert shares == pytest.approx([shares[0]] * 3, rel=1e-5)
    assert sum(row.weight for row in rows) == pytest.approx(1.0)


def test_padding_fills_up_what_does_not_divide_and_counts_nothing(tmp_path: Path) -> None:
    """Six slots in two chunks of three, and three rows more: ten rows, so that it still divides."""
    trainer = stepped(several(), tmp_path, batch=3, loss_type="dapo")
    assert [len(batch["advantages"]) for batch in trainer.batches] == [5, 5]
    padding = [row for row in trainer.seen() if not row[1]]
    assert padding == [([tokenizer().pad_token_id], [], [], [], 0.0)]
    trained = sum(row.trained for group in several() for one in group.trained for row in one.rows)
    assert {int(batch["num_items_in_batch"]) for batch in trainer.batches} == {trained}


# The gradient


@pytest.mark.parametrize("loss", list(LOSSES))
def test_the_gradient_of_single_rows_is_trls_own(tmp_path: Path, loss: str) -> None:
    trainer = stepped(single(), tmp_path, batch=3, **config_of(loss))
    assert_same(trainer.gradient, by_hand(single(), *LOSSES[loss]))


@pytest.mark.parametrize(("loss", "batch"), [*((loss, 2) for loss in LOSSES), ("grpo", 6), ("grpo", 3), ("dapo", 6)])
def test_the_gradient_of_several_rows_counts_every_rollout_once(tmp_path: Path, loss: str, batch: int) -> None:
    """However many rows it folds into, and however the rows fall into chunks."""
    trainer = stepped(several(), tmp_path, batch=batch, **config_of(loss))
    assert_same(trainer.gradient, by_hand(several(), *LOSSES[loss]))


@cache
def by_turn() -> tuple[Group, ...]:
    """Rollouts of one to three turns, one of which is in a second row."""
    return (
        make_group(
            make_rollout(
                [1.0, 0.5, 2.0],
                *weighted(
                    as_sampled(make_row([5, 6], [7, 8, 9, 10], [1, 1, 0, 1], turns=[(0, 0, 2), (2, 3, 4)])),
                    as_sampled(make_row([5, 6, 7], [11, 12], turns=[(1, 0, 2)])),
                ),
            ),
            make_rollout([0.0, 1.0], as_sampled(make_row([5, 6], [13, 14], turns=[(0, 0, 1), (1, 1, 2)])), sample=1),
            make_rollout(4.0, as_sampled(make_row([5, 6], [15], turns=[(0, 0, 1)])), sample=2),
        ),
    )


TURNS = {  # returns-to-go [3.5, 2.5, 2], [1, 1], [4], less what the others have at that turn
    (7, 8, 9, 10): [3.5 - 2.5, 3.5 - 2.5, 0.0, 2.0 - 2.5],
    (11, 12): [2.5 - 1.0, 2.5 - 1.0],
    (13, 14): [1.0 - 3.75, 1.0 - 2.5],
    (15,): [4.0 - 2.25],
}


def of_turns(group: Group, one: Rollout, row: Row) -> Any:
    return torch.tensor(TURNS[tuple(row.token_ids.tolist()[row.prompt_length :])])


@pytest.mark.parametrize("loss", sorted(LOSSES.keys() - {"vespo"}))
def test_the_gradient_of_turns_is_the_one_by_hand(tmp_path: Path, loss: str) -> None:
    trainer = stepped(by_turn(), tmp_path, credit=TurnCredit(), **config_of(loss))
    assert_same(trainer.gradient, by_hand(by_turn(), *LOSSES[loss], of_turns))


@pytest.mark.parametrize("settings", [{"importance_sampling_level": "sequence"}, {"loss_type": "vespo"}])
def test_losses_of_whole_rows_are_refused_for_turns(settings: dict[str, Any]) -> None:
    config = GRPOConfig(**{"loss_type": "dapo", "use_cpu": True, "bf16": False} | settings)
    with pytest.raises(ConfigError, match="weighs whole rows"):
        AgentGRPOTrainer(None, [], lambda rows, n, step: [], config, credit=TurnCredit())


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("turns", [False, True])
def test_the_gradient_of_stale_rollouts_is_the_one_by_hand(
    tmp_path: Path, turns: bool, temperature: float, beta: float
) -> None:
    """Each token counts with its own ratio to the weights that sampled it, truncated, over two updates."""
    groups = [
        replace_rows(group, lambda row: as_stale(row, temperature)) for group in (by_turn() if turns else several())
    ]
    trainer = stepped(
        groups, tmp_path, kind=AtTemperature, steps=2, learning_rate=0.1, loss_type="cispo", epsilon_high=MOST_RATIO,
        temperature=temperature, beta=beta, credit=TurnCredit() if turns else None,
    )  # fmt: skip
    rows = [(torch.tensor(of.rewards), one, row) for of in groups for one in of.trained for row in one.rows]
    model, reference = make_model(), make_model()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(2):
        losses, truncated = [], 0
        for rewards, one, row in rows:
            mine = logps(model, row, temperature)
            advantage = (one.reward - rewards.mean()) / (rewards.std() + 1e-4)
            if turns:
                advantage = torch.tensor(TURNS[tuple(row.token_ids.tolist()[row.prompt_length :])])
            ratio = (mine - torch.tensor(row.logprobs[row.prompt_length :])).exp()
            gap = logps(reference, row, temperature).detach() - mine
            kl = ratio * (gap.exp() - gap - 1)  # TRL corrects the KL term too
            trained = torch.tensor(row.loss_mask[row.prompt_length :]) == 1
            losses.append((beta * kl - ratio.detach().clamp(max=MOST_RATIO) * advantage * mine)[trained])
            truncated += int((ratio[trained] > MOST_RATIO).sum())
        tokens = torch.cat(losses)
        assert 0 < truncated < len(tokens)
        (tokens.sum() / len(tokens)).backward()
        with torch.no_grad():
            for value in model.parameters():
                value -= 0.1 * value.grad
                value.grad = None
    moved = {name: before[name] - value.detach() for name, value in model.named_parameters()}
    assert_same(trainer.gradient, moved)


def replace_rows(group: Group, change: Callable[[Row], Row]) -> Group:
    """The group with other rows in its rollouts."""
    changed = (replace(one, rows=tuple(change(row) for row in one.rows)) for one in group.rollouts)
    return replace(group, rollouts=tuple(changed))


def as_stale(row: Row, temperature: float) -> Row:
    """The row as sampled by other weights: the policy finds its tokens less or more likely, some of them much more."""
    with torch.no_grad():
        values = logps(make_model(), row, temperature).numpy()
    known = row.logprobs.copy()
    known[row.prompt_length :] = values - np.resize([1.2, -0.4, 0.3], len(values))
    return replace(row, logprobs=known)


def test_two_processes_agree_on_rows_and_divisor(tmp_path: Path) -> None:
    """One has rows beyond its slots and the other has none; the gradient is that of all rollouts together."""
    half_failed = (several()[0], make_group(failed(), failed(), failed()))
    steps = {loss: (several(), config_of(loss)) for loss in (*LOSSES, "bnpo")}
    steps["bnpo, one process without a rollout"] = (half_failed, config_of("bnpo"))
    (tmp_path / "steps").write_bytes(pickle.dumps(steps))
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(free_port())]
    script = ["--module", "support.backends.trl_processes", str(tmp_path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *launch, *script], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    gradients = torch.load(tmp_path / "gradients.pt")
    for loss, how in LOSSES.items():
        assert_same(gradients.pop(loss), by_hand(several(), *how))
    shares = [by_hand([group], mean_of_tokens) for group in several()]  # TRL averages each process's own tokens
    means = {name: (value + shares[1][name]) / 2 for name, value in shares[0].items()}
    assert_same(gradients.pop("bnpo"), means)
    assert_same(gradients.pop("bnpo, one process without a rollout"), shares[0])
    assert not gradients


def test_a_micro_batch_of_failures_leaves_the_mean_over_micro_batches(tmp_path: Path) -> None:
    """The seed decides which two of the four share a micro-batch."""
    first, second = (make_row([5, 6], [7, 8, 9]), make_row([5], [10]))
    group = make_group(rollout(1.0, first), failed(), rollout(0.0, second), failed())
    filled = set()
    for seed in range(6):
        trainer = stepped([group], tmp_path, n=4, batch=2, loss_type="bnpo", seed=seed)
        masks = [(batch["completion_mask"] * batch["tool_mask"]).bool() for batch in trainer.batches]
        filled.add(sum(bool(mask.any()) for mask in masks))
        together = any(mask.any(1).all() for mask in masks)
        assert_same(trainer.gradient, by_hand([group], mean_of_tokens if together else mean_of_rows))
    assert filled == {1, 2}, "no seed has put both failures into one micro-batch"


def test_a_rollout_counts_the_same_however_it_is_cut_into_rows(tmp_path: Path) -> None:
    """Two conversations in one rollout count as much as their tokens would in one row of it."""

    def mean_of_rollouts(losses: list[list[tuple[float, torch.Tensor]]], rollouts: int) -> Any:
        return sum(torch.cat([tokens for _, tokens in rows]).mean() for rows in losses) / rollouts

    groups = [
        make_group(
            rollout(1.0, make_row([5, 6], [7, 8, 9]), make_row([40], [41, 42])),
            rollout(0.0, make_row([5], [10])),
            rollout(0.5, make_row([5], [11, 12])),
        )
    ]
    assert_same(stepped(groups, tmp_path).gradient, by_hand(groups, mean_of_rollouts))


def test_clipping_is_by_the_samplers_logprobs(tmp_path: Path) -> None:
    """A sampler that is far off is clipped: what it would gain more is not taken."""
    far = [
        make_group(
            rollout(1.0, make_row([5, 6], [7, 8, 9]), off=0.5),
            rollout(0.0, make_row([5, 6], [10, 11]), off=0.5),
            rollout(0.2, make_row([5, 6], [12]), off=0.5),
        )
    ]
    assert_same(stepped(far, tmp_path).gradient, by_hand(far, mean_of_rows))


def test_rows_without_a_slot_have_the_references_logprobs(tmp_path: Path) -> None:
    """At the first step the reference is the policy, so the KL term is zero, and so is its gradient."""
    trainer = stepped(several(), tmp_path, loss_type="dapo", beta=0.1)
    assert_same(trainer.gradient, by_hand(several(), mean_of_tokens))
    found = {tuple(ids): logps for ids, logps in trainer.column("ref_per_token_logps")}
    for row in several()[0].rollouts[0].rows:
        with torch.no_grad():
            expected = logps(make_model(), row)
        known = found[tuple(row.token_ids.tolist()[row.prompt_length :])]
        torch.testing.assert_close(known, expected, atol=1e-5, rtol=1e-4)


def test_rows_without_a_slot_keep_the_policys_logprobs_over_iterations(tmp_path: Path) -> None:
    """The sampler's are not at the temperature, so TRL computes the policy's before the first of two updates."""
    trainer = stepped(several(), tmp_path, loss_type="dapo", temperature=0.7, num_iterations=2, steps=2, runs=1)
    before, after = trainer.batches[:1], trainer.batches[1:]
    assert len(before) == len(after) == 1
    assert torch.equal(before[0]["old_per_token_logps"], after[0]["old_per_token_logps"])
    found = {tuple(ids): logps for ids, logps in trainer.column("old_per_token_logps")}
    for row in several()[0].rollouts[0].rows:
        ids = torch.tensor([row.token_ids.tolist()])
        with torch.no_grad():
            scaled = (make_model()(ids).logits[0, :-1] / 0.7).log_softmax(-1)
        expected = scaled.gather(1, ids[0, 1:, None])[row.prompt_length - 1 :, 0]
        known = found[tuple(row.token_ids.tolist()[row.prompt_length :])]
        torch.testing.assert_close(known, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_a_rollout_that_failed_leaves_the_divisor(tmp_path: Path, loss: str) -> None:
    """The step is as large as without its slot."""
    kept = [one for one in several()[1].rollouts if one.trained]
    with_failure = stepped([make_group(*kept, failed())], tmp_path, **config_of(loss))
    without = stepped([make_group(*kept)], tmp_path, n=2, **config_of(loss))
    assert_same(with_failure.gradient, without.gradient)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_dropped_groups_and_failures_move_nothing(tmp_path: Path, loss: str) -> None:
    """And no NaN comes of a step with nothing in it."""
    trained = rollout(1.0, make_row([5], [6, 7]), make_row([8], [9]))
    groups = [
        make_group(failed(), failed(), failed()),
        make_group(trained, rollout(0.0, make_row([5], [10])), failed(), dropped="over the token budget"),
    ]
    trainer = stepped(groups, tmp_path, **config_of(loss))
    assert all(not value.any() for value in trainer.gradient.values())
    figures = [value for line in trainer.logged for value in line.values() if isinstance(value, float)]
    assert not any(math.isnan(value) for value in figures)


@pytest.mark.parametrize("loss", ["grpo", "dapo"])
def test_a_nan_never_appears(tmp_path: Path, loss: str) -> None:
    trainer = stepped(several(), tmp_path, loss_type=loss, batch=2, steps=2)
    for batch in trainer.batches:
        for name, values in batch.items():
            assert torch.isfinite(values).all(), name
    assert all(torch.isfinite(value).all() for value in trainer.model.parameters())
    assert all(math.isfinite(line["loss"]) for line in trainer.logged if "loss" in line)


def test_fewer_groups_than_rows_leave_slots_empty(tmp_path: Path) -> None:
    """A step that ran out of its token budget has run fewer rows than were asked for."""

    class Short(Watched):
        def __init__(self, model: Any, rows: Any, run_groups: Any, *args: Any, **others: Any) -> None:
            super().__init__(model, rows, lambda *asked: run_groups(*asked)[:1], *args, **others)

    trainer = stepped(single(), tmp_path, kind=Short)
    assert sum(row[2] == [0] for row in trainer.seen()) == 3


# What is logged


def test_a_steps_figures_are_logged_with_trls(tmp_path: Path) -> None:
    trainer = stepped(single(), tmp_path)
    trainer.step_metrics = {"failures/timeout": 3, "tokens_per_second": 1.5}
    trainer.model.train()
    trainer.log({"loss": 0.5})
    assert trainer.logged[-1]["failures/timeout"] == 3
    trainer.log({"train_runtime": 0.5})
    assert "failures/timeout" not in trainer.logged[-1]


def test_what_is_truncated_is_counted_over_all_trained_tokens(tmp_path: Path) -> None:
    class Counting(Watched):
        def __init__(self, truncation: Truncation, *args: Any, **others: Any) -> None:
            super().__init__(*args, **others)
            self.truncation = truncation

    def sampled(first: float) -> list[Group]:
        """The sampler's logprobs are the policy's, but for those of the first rollout's tokens."""
        rollouts = [*single()[0].rollouts]
        (row,) = rollouts[0].rows
        rollouts[0] = replace(rollouts[0], rows=(replace(row, logprobs=row.logprobs + np.float32(first)),))
        return [make_group(*rollouts)]

    trained = [rollout.rows[0].trained for rollout in single()[0].rollouts]
    # The first rollout went well.
    both, good, bad = Truncation.symmetric(0.0, 2.0), Truncation(most=2.0), Truncation(most_bad=2.0)
    cases = ((0.0, both, 0), (-0.5, both, 0), (-1.0, both, trained[0]), (-1.0, good, trained[0]), (-1.0, bad, 0))
    for apart, limits, truncated in cases:
        kind: Any = partial(Counting, limits)
        trainer = stepped(sampled(apart), tmp_path, kind=kind, batch=1, loss_type="cispo", epsilon_high=2.0)
        line = next(line for line in trainer.logged if "loss" in line)
        ratio = (math.exp(-apart) * trained[0] + sum(trained[1:])) / sum(trained)
        assert line["off_policy/ratio"] == pytest.approx(ratio, abs=0.03)
        assert line["off_policy/truncated"] == pytest.approx(truncated / sum(trained))
    assert "off_policy/ratio" not in next(line for line in stepped(single(), tmp_path).logged if "loss" in line)


# What is refused


def test_groups_split_over_processes_are_refused() -> None:
    class Args:
        per_device_train_batch_size, steps_per_generation, num_generations = 3, 2, 4

    with pytest.raises(ConfigError, match=r"a group would be split over processes.*num_generations=4"):
        AgentGRPOTrainer(None, [], lambda rows, n, step: [], Args())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_vllm": True, "vllm_importance_sampling_correction": True}, "correct for the sampler twice"),
        ({"use_vllm": True, "vllm_mode": "colocate", "vllm_tensor_parallel_size": 2}, "wait for each other forever"),
        ({"beta": 0.1, "loss_type": "grpo"}, "beta=0.1 can't be used with loss=grpo"),
        ({"beta": 0.1, "loss_type": "dr_grpo"}, "beta=0.1 can't be used with loss=dr_grpo"),
    ],
)
def test_options_that_would_train_on_something_else_are_refused(settings: dict[str, Any], message: str) -> None:
    known: dict[str, Any] = {"vllm_importance_sampling_correction": False, "loss_type": "dapo", "use_cpu": True}
    config = GRPOConfig(**known | {"bf16": False, "per_device_train_batch_size": 8} | settings)
    with pytest.raises(ConfigError, match=message):
        AgentGRPOTrainer(None, [], lambda rows, n, step: [], config)


def test_a_row_without_a_prompt_or_with_half_a_character_has_a_title(tmp_path: Path) -> None:
    args = GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=2, num_generations=2, use_cpu=True, bf16=False
    )
    rows: list[dict[str, Any]] = [{"question": "é", "n": [1]}, {"prompt": "half \ud83d"}, {"prompt": ["no text"]}]
    trainer = AgentGRPOTrainer(make_model(), rows, lambda *_: [], args, processing_class=tokenizer())
    assert [example["row"] for example in trainer.train_dataset] == [0, 1, 2]
    assert [example["prompt"] for example in trainer.train_dataset][1] == "half ?"


# What we rely on in TRL

BROKEN = "TRL has changed what AgentGRPOTrainer is built on; see backends/trl/trainer.py"


def test_the_pinned_internals_of_trl() -> None:
    hook = getattr(GRPOTrainer, "_generate_and_score_completions", None)
    assert hook is not None, BROKEN
    assert list(inspect.signature(hook).parameters) == ["self", "inputs"], BROKEN
    assert hasattr(GRPOTrainer, "_get_per_token_logps_and_entropies"), BROKEN
    assert "rollout_func" in inspect.signature(GRPOTrainer.__init__).parameters, BROKEN
    source = inspect.getsource(GRPOTrainer)
    assert "self.rollout_func(prompts, self)" in source, BROKEN
    assert "self._buffered_inputs[self._step % self.args.steps_per_generation]" in source, BROKEN
    assert 'extra_fields.pop("env_mask", None)' in source, BROKEN


def test_the_pinned_keys_of_trls_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[set[str]] = []
    generate = GRPOTrainer._generate_and_score_completions

    def watched(trainer: GRPOTrainer, inputs: Any) -> Any:
        output = generate(trainer, inputs)
        keys.append(set(output))
        return output

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", watched)
    stepped(single(), tmp_path)
    assert keys == [
        {
            *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages"),
            *("num_items_in_batch", "sampling_per_token_logps"),
        }
    ], BROKEN
