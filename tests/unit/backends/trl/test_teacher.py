"""On-policy distillation: a teacher's logprobs, what they add to advantages, and the gradient computed with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import torch

from agentcore_rl_toolkit.backends.trl.backend import TrlSettings
from agentcore_rl_toolkit.backends.trl.grpo_config import check_config, trl_config
from agentcore_rl_toolkit.backends.trl.teacher import (
    Distillation,
    model_logprobs,
    open_teacher,
    read_prompt_logprobs,
    server_logprobs,
)
from agentcore_rl_toolkit.errors import ConfigError, EngineError
from agentcore_rl_toolkit.gateway.record.trajectory import Row
from support.backends.trl import make_model, stepped, tokenizer
from support.fake_vllm import FakeVllm
from support.rollouts import failed, make_group, make_rollout, make_row, weighted

pytestmark = pytest.mark.filterwarnings("ignore")  # Transformers' and TRL's, a different one each release


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def by_hand(model: Any, ids: Sequence[int], temperature: float = 1.0) -> np.ndarray:
    """The logprob of every token but the first."""
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)])).logits[0, :-1].double().numpy()
    return log_softmax(logits / temperature)[np.arange(len(ids) - 1), list(ids[1:])]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_models_logprobs_in_batches_of_several_lengths(temperature: float) -> None:
    sequences = [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10], [11, 12, 13, 14, 15, 16, 17]]
    model = make_model()
    found = model_logprobs(model, sequences, temperature, batch_size=2)
    for ids, logprobs in zip(sequences, found, strict=True):
        np.testing.assert_allclose(logprobs, by_hand(model, ids, temperature), atol=1e-5)


def test_a_servers_logprobs_are_those_of_the_prompts_own_tokens() -> None:
    sequences = [[5, 6, 7], [9, 9]]
    with FakeVllm().serving() as fake:
        teacher = open_teacher(f"vllm={fake.url}", temperature=1.0, batch_size=1, device="cpu", vocabulary=9)
        found = [values.tolist() for values in teacher(sequences)]
    assert found == [pytest.approx([-2.061, -2.072]), pytest.approx([-2.091])]


@pytest.mark.parametrize(
    "answer",
    [
        *(b"[", b"{}", b'{"choices": [{"prompt_logprobs": null}]}'),
        b'{"choices": [{"prompt_logprobs": [null, {}, {}]}]}',
        b'{"choices": [{"prompt_logprobs": [null, null, {"7": {"logprob": -1}}]}]}',
    ],
)
def test_an_answer_without_them_is_an_error(answer: bytes) -> None:
    with pytest.raises(EngineError, match="the teacher's answer has no logprobs of its 3 prompt tokens"):
        read_prompt_logprobs(answer, [5, 6, 7])


def test_a_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(EngineError):
        server_logprobs("http://127.0.0.1:9", [[1, 2]])


def policy_row(prompt: Sequence[int], completion: Sequence[int], mask: Sequence[int] | None = None) -> Row:
    """A row with the logprobs that the policy gives it."""
    row = make_row(prompt, completion, mask)
    known = row.logprobs.copy()
    known[1:] = np.where(row.loss_mask[1:] == 1, by_hand(make_model(), row.token_ids), np.nan)
    return replace(row, logprobs=known)


def fixed(sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """A teacher that prefers low ids."""
    return [-np.array(ids[1:], np.float64) / 4 for ids in sequences]


def groups() -> list[Any]:
    first = weighted(policy_row([5, 6], [7, 8, 9, 10], [1, 1, 0, 1]), policy_row([5], [11, 12]))
    return [
        make_group(
            make_rollout(1.0, *first),
            make_rollout(0.0, policy_row([5, 6], [13, 14]), sample=1),
            failed(sample=2),
        )
    ]


def numpy_gradient(loss: str, reward_weight: float, weight: float) -> np.ndarray:
    """The gradient for the output matrix. The ratio to the sampler is 1, so a token's is advantage · (chances − 1)."""
    model, (group,) = make_model().double(), groups()
    matrix = model.lm_head.weight.detach().numpy()
    rewards = np.array(group.rewards)
    whole = np.zeros_like(matrix)
    tokens = sum(row.trained for rollout in group.trained for row in rollout.rows)
    for rollout in group.trained:
        by_reward = (rollout.reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        for row in rollout.rows:
            with torch.no_grad():
                hidden = model.model(torch.tensor([row.token_ids.tolist()])).last_hidden_state[0].numpy()
            share = 1 / tokens if loss == "dapo" else row.weight / row.trained / len(group.trained)
            for place in np.flatnonzero(row.loss_mask):
                token, state = row.token_ids[place], hidden[place - 1]
                logprobs = log_softmax(matrix @ state)
                advantage = reward_weight * by_reward + weight * (-token / 4 - logprobs[token])
                whole += share * advantage * np.outer(np.exp(logprobs) - np.eye(len(logprobs))[token], state)
    return whole


@pytest.mark.parametrize("loss", ["dapo", "grpo"])
@pytest.mark.parametrize(("reward_weight", "weight"), [(1.0, 0.5), (0.0, 2.0)])
def test_the_gradient_is_the_one_by_hand(loss: str, reward_weight: float, weight: float, tmp_path: Path) -> None:
    distillation = Distillation(fixed, weight, reward_weight)
    trainer = stepped(groups(), tmp_path, loss_type=loss, distillation=distillation)
    expected = numpy_gradient(loss, reward_weight, weight)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(trainer.gradient["lm_head.weight"].numpy(), expected, atol=5e-6)
    rows = [row for rollout in groups()[0].trained for row in rollout.rows]
    gaps = [
        (row.logprobs[at] + row.token_ids[at] / 4, row.token_ids[at])
        for row in rows
        for at in np.flatnonzero(row.loss_mask)
    ]
    assert trainer.logged[0]["teacher/kl"] == pytest.approx(np.mean([gap for gap, _ in gaps]), abs=1e-5)


def test_its_mean_over_samples_is_the_gradient_of_the_divergence() -> None:
    dice = np.random.default_rng(0)
    logits, teacher = dice.normal(size=7), log_softmax(dice.normal(size=7))

    def divergence(at: np.ndarray) -> float:
        policy = log_softmax(at)
        return float((np.exp(policy) * (policy - teacher)).sum())

    policy = log_softmax(logits)
    rows = [([0], [token], [float(policy[token])], [1]) for token in range(7)]
    gaps = Distillation(lambda sequences: [teacher[[ids[1]]] for ids in sequences]).compare(rows)
    estimated = sum(np.exp(policy[token]) * gaps[token][0] * (np.eye(7)[token] - np.exp(policy)) for token in range(7))
    steps = np.eye(7) * 1e-6
    exact = np.array([-(divergence(logits + step) - divergence(logits - step)) / 2e-6 for step in steps])
    np.testing.assert_allclose(estimated, exact, atol=1e-8)


def test_a_token_that_the_teacher_never_says_has_a_bounded_advantage() -> None:
    distillation = Distillation(lambda sequences: [np.full(len(ids) - 1, -np.inf) for ids in sequences])
    assert distillation.compare([([1], [2, 3], [-0.5, 0.0], [1, 0]), ([1], [1], [0.0], [0])])[0].tolist() == [
        -20.0,
        0.0,
    ]
    assert distillation.tokens == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher_weight": 2.0}, "teacher_weight=2.0 has no effect\nhint: name a teacher"),
        ({"reward_weight": 0.0}, "reward_weight=0.0 has no effect"),
        ({"teacher": "tiny", "teacher_weight": 0.0}, "teacher_weight must be more than 0"),
        ({"teacher": "tiny", "skip_epochs": 1}, "groups whose rewards are all the same are trained on too"),
        ({"teacher": "tiny", "dynamic_sampling": True}, "leave out dynamic_sampling and skip_epochs"),
        ({"teacher": "tiny", "loss": "vespo"}, "weighs whole rows, and a teacher weighs tokens"),
        ({"teacher": "tiny", "options": {"use_liger_kernel": True}}, "TRL refuses|Liger's loss takes one advantage"),
    ],
)
def test_settings_that_can_not_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trl_config(TrlSettings(device="cpu", **settings))


def test_a_teacher_that_can_not_be_compared_with_the_policy_is_refused(tmp_path: Path) -> None:
    known: dict[str, Any] = {"batch_size": 1, "device": "cpu"}
    with pytest.raises(ConfigError, match=r"a server gives a teacher's logprobs at temperature 1, not 0\.7"):
        open_teacher("vllm=http://127.0.0.1:9", temperature=0.7, vocabulary=9, **known)
    make_model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"tokens, and the policy has 1000000(.|\n)*the policy's tokenizer"):
        open_teacher(str(tmp_path), temperature=1.0, vocabulary=1_000_000, **known)
    teacher = open_teacher(str(tmp_path), temperature=0.7, vocabulary=9, **known)
    np.testing.assert_allclose(teacher([[5, 6, 7]])[0], by_hand(make_model(), [5, 6, 7], 0.7), atol=1e-5)


def test_other_losses_take_a_teacher() -> None:
    check_config(trl_config(TrlSettings(device="cpu", teacher="tiny")), "a teacher weighs tokens")
