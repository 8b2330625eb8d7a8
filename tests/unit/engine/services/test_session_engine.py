"""What is particular to the engine of SageMaker's training sessions; the rest is in the contract suite."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from agentcore_rl_toolkit.engine import IDS, Sampled, SampleRequest, Sampling, open_engine
from agentcore_rl_toolkit.engine.services.session_engine import SessionEngine
from agentcore_rl_toolkit.engine.services.training_session import TrainingSession
from agentcore_rl_toolkit.errors import EngineError
from support.fake_training_session import FakeTrainingSession

PACKAGE = "arn:aws:sagemaker:us-west-2:123456789012:model-package/math/3"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTrainingSession]:
    with FakeTrainingSession().serving() as fake:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        fake.start_session("run")
        yield fake


def sample(engine: Any, prompt: int = 3, **sampling: Any) -> Sampled:
    async def once() -> Sampled:
        await engine.start()
        try:
            request = SampleRequest(array(IDS, range(5, 5 + prompt)), Sampling(**{"max_tokens": 4} | sampling))
            [sampled] = [one async for one in engine.sample(request)]
            return sampled
        finally:
            await engine.close()

    return asyncio.run(once())


def asked(fake: FakeTrainingSession) -> dict[str, Any]:
    """The configuration of the latest request."""
    config: dict[str, Any] = fake.of("ExecuteSamplingOperation")[-1]["operationConfig"]["sample"]
    return config


def engine(**options: Any) -> SessionEngine:
    return SessionEngine(TrainingSession("run", patience=0.0), **options)


def test_the_least_number_of_tokens_is_the_services_and_the_rest_is_cut_off(fake: FakeTrainingSession) -> None:
    sampled = sample(engine(), max_tokens=4)
    assert asked(fake)["samplingParams"]["maxTokens"] == 512
    assert (len(sampled.token_ids), len(sampled.logprobs), sampled.finish) == (4, 4, "length")


def test_a_stop_id_ends_a_reply_that_the_service_went_on_with(fake: FakeTrainingSession) -> None:
    free = sample(engine(), max_tokens=100).token_ids
    sampled = sample(engine(), max_tokens=100, stop_token_ids=(free[7], 12345))
    assert sampled.token_ids == free[: free.index(free[7]) + 1]
    assert sampled.finish == "stop"
    late = sample(engine(), max_tokens=5, stop_token_ids=(free[7],))
    assert (late.token_ids, late.finish) == (free[:5], "length")


def test_settings_are_passed_on_and_open_ones_mean_the_policy_itself(fake: FakeTrainingSession) -> None:
    sample(engine(), temperature=0.5, top_p=0.9, top_k=20, seed=9, stop=("\n",), max_tokens=600)
    known = {"maxTokens": 600, "temperature": 0.5, "topK": 20, "topP": 0.9, "seed": 9, "stop": ["\n"]}
    assert asked(fake)["samplingParams"] == known
    sample(engine())
    assert asked(fake)["samplingParams"] == {"maxTokens": 512, "temperature": 1.0, "topK": -1, "topP": 1.0}


@pytest.mark.parametrize(
    "sampling",
    [{"min_p": 0.1}, {"repetition_penalty": 1.1}, {"json_schema": {}}, {"ignore_eos": True}, {"top_logprobs": 2}],
)
def test_what_a_session_has_no_setting_for_is_refused(fake: FakeTrainingSession, sampling: dict[str, Any]) -> None:
    [name] = sampling
    with pytest.raises(EngineError, match=f"can't sample with {name}") as caught:
        sample(engine(), **sampling)
    assert caught.value.status == 400
    assert fake.calls == []


def test_without_a_context_a_request_needs_max_tokens(fake: FakeTrainingSession) -> None:
    with pytest.raises(EngineError, match="needs max_tokens") as caught:
        sample(engine(), max_tokens=None)
    assert caught.value.status == 400
    assert len(sample(engine(context_length=40), max_tokens=None).token_ids) == 37


def test_it_is_opened_by_a_session_and_a_model_package(fake: FakeTrainingSession) -> None:
    fake.packages[PACKAGE] = (None, None)
    fake.loaded.add(PACKAGE)
    sample(open_engine("sagemaker-session=run"))
    assert "modelPackageArn" not in asked(fake)
    sample(open_engine(f"sagemaker-session=run@{PACKAGE}"))
    assert asked(fake)["modelPackageArn"] == PACKAGE
    with pytest.raises(EngineError, match="not a model package: 'latest'"):
        open_engine("sagemaker-session=run@latest")


def test_requests_end_with_the_weights_they_began_with(fake: FakeTrainingSession) -> None:
    other = PACKAGE.replace("/3", "/4")
    fake.packages |= {PACKAGE: (None, None), other: (None, None)}
    fake.loaded |= {PACKAGE, other}
    fake.pace = 0.001
    subject = engine(weights=PACKAGE, weight_version="3")

    async def across() -> list[str | None]:
        async def once() -> str | None:
            request = SampleRequest(array(IDS, [5, 6, 7]), Sampling(max_tokens=4))
            return [one.weight_version async for one in subject.sample(request)][-1]

        early = asyncio.create_task(once())
        while not fake.sampled_from:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        subject.update(other, "4")
        return [await early, await once(), (await subject.info()).weight_version]

    assert asyncio.run(across()) == ["3", "4", "4"]
    assert fake.sampled_from == {PACKAGE: 1, other: 1}


@pytest.mark.parametrize(
    ("code", "status"),
    [("ValidationException", 400), ("ThrottlingException", 429), ("InternalServerException", 502)],
)
def test_refusals_have_the_status_that_an_agent_should_see(fake: FakeTrainingSession, code: str, status: int) -> None:
    fake.faults = lambda operation: code
    with pytest.raises(EngineError, match=r"injected") as caught:
        sample(engine())
    assert caught.value.status == status


def test_an_operation_that_failed_has_the_services_words(fake: FakeTrainingSession) -> None:
    fake.failing["sample"] = "no room"
    with pytest.raises(EngineError, match="sample operation ended as Failed: no room") as caught:
        sample(engine())
    assert caught.value.status == 502


def test_a_service_that_takes_too_long(fake: FakeTrainingSession) -> None:
    fake.pace = 5.0
    with pytest.raises(EngineError, match=r"longer than 0\.3 seconds") as caught:
        sample(engine(timeout=0.3))
    assert caught.value.status == 504
