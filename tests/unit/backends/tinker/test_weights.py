"""The weights of a run, against a server of Tinker's wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker")

from agentcore_rl_toolkit.backends.loop.service_run import update_weights
from agentcore_rl_toolkit.backends.tinker.backend import TinkerSettings
from agentcore_rl_toolkit.backends.tinker.convert import to_examples
from agentcore_rl_toolkit.backends.tinker.weights import TinkerWeights, adam_params
from agentcore_rl_toolkit.errors import AgentCoreRLError, ConfigError
from support.fake_tinker import MODEL, FakeTinker
from support.process import free_port
from support.rollouts import make_group, make_rollout, make_row

REPLIES = [[40, 2], [50, 2]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTinker]:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    with FakeTinker(REPLIES).serving() as fake:
        yield fake


def settings(fake: FakeTinker, **more: Any) -> TinkerSettings:
    return TinkerSettings(model=MODEL, base_url=fake.url, **more)


def examples(*rewards: float) -> Any:
    """Each says the first reply if its reward is positive, and the second otherwise, at even odds."""
    rollouts = [
        make_rollout(reward, make_row([1, 2, 3], REPLIES[reward <= 0], logprobs=[-0.6931472, 0.0]))
        for reward in rewards
    ]
    return to_examples([make_group(*rollouts)])


def test_an_update_is_one_pass_and_one_step(fake: FakeTinker) -> None:
    given = settings(fake, learning_rate=0.5, loss="ppo", options={"clip_low_threshold": 0.8, "beta2": 0.99})
    with TinkerWeights(given) as weights:
        figures = update_weights(weights, sent := examples(1.0, 0.0, 1.0))
    assert len(fake.data) == 1
    assert len(fake.data[0]) == 3
    assert (fake.losses, fake.loss_configs) == (["ppo"], [{"clip_low_threshold": 0.8}])
    assert [(step["learning_rate"], step["beta2"]) for step in fake.optimizer] == [(0.5, 0.99)]
    assert fake.trained.numbers[0] > 0 > fake.trained.numbers[1]
    assert figures["rows/trained"] == 3
    assert figures["sampler/kl"] == pytest.approx(0.0, abs=1e-6)
    found = [one.log_ratios for one in sent]
    assert [None if one is None else one.tolist() for one in found] == [pytest.approx([0.0, 0.0], abs=1e-6)] * 3
    assert weights.context_length == fake.context_length


def test_what_has_no_advantage_is_not_sent(fake: FakeTinker) -> None:
    with TinkerWeights(settings(fake)) as weights:
        assert update_weights(weights, examples(1.0, 1.0)) == {"rows/run": 2, "rows/trained": 0}
        assert (fake.data, fake.optimizer) == ([], [])
        assert (
            update_weights(weights, examples(1.0, 0.5, 0.0))["rows/trained"] == 2
        )  # the one in the middle is the mean


def test_a_checkpoint_is_the_weights_and_goes_on_in_another_session(fake: FakeTinker) -> None:
    with TinkerWeights(settings(fake, ttl_days=2)) as weights:
        weights.update(examples(1.0, 0.0))
        names = weights.save(1)
    saved = fake.trained
    assert fake.saved[names["sampler"]] == saved
    asked = [body for path, body in fake.requests if path == "/api/v1/save_weights"]
    assert [body["ttl_seconds"] for body in asked] == [2 * 24 * 60 * 60]
    with TinkerWeights(settings(fake), names) as weights:
        assert len(fake.models) == 2
        assert fake.trained == saved
        asked = [body for path, body in fake.requests if path == "/api/v1/load_weights"]
        assert [(body["path"], body["optimizer"]) for body in asked] == [(names["state"], True)]
        weights.delete(names)
    assert fake.saved == {}


def test_a_key_that_is_refused(fake: FakeTinker) -> None:
    fake.failing["create_session"] = 401
    with pytest.raises(ConfigError, match="can't use the service") as caught:
        TinkerWeights(settings(fake))
    assert "set TINKER_API_KEY" in str(caught.value)


def test_no_key_at_all(fake: FakeTinker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TINKER_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AgentCoreRLError, match="can't use the service"):
        TinkerWeights(settings(fake))


def test_a_service_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="no Tinker service answers at"):
        TinkerWeights(TinkerSettings(base_url=f"http://127.0.0.1:{free_port()}"))


def test_optimizer_settings_that_the_sdk_refuses() -> None:
    known = TinkerSettings(options={"beta1": 0.5})
    assert (adam_params(known).beta1, adam_params(known).learning_rate) == (0.5, 1e-4)
