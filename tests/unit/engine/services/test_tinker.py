"""What is particular to the Tinker engine; the rest is in the contract suite."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tinker")

from agentcore_rl_toolkit.engine import IDS, Sampled, SampleRequest, Sampling, open_engine
from agentcore_rl_toolkit.engine.services.tinker import TinkerEngine
from agentcore_rl_toolkit.errors import EngineError
from support.fake_tinker import MODEL, FakeTinker
from support.reply_policy import Weights


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTinker]:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    with FakeTinker().serving() as fake:
        monkeypatch.setenv("TINKER_BASE_URL", fake.url)
        yield fake


def sample(engine: Any, **sampling: Any) -> Sampled:
    async def once() -> Sampled:
        await engine.start()
        try:
            request = SampleRequest(array(IDS, [5, 6, 7]), Sampling(**{"max_tokens": 4} | sampling))
            [sampled] = [one async for one in engine.sample(request)]
            return sampled
        finally:
            await engine.close()

    return asyncio.run(once())


def asked(fake: FakeTinker) -> dict[str, Any]:
    """The sampling settings of the latest request."""
    return [body for path, body in fake.requests if path == "/api/v1/asample"][-1]["sampling_params"]


def test_it_is_opened_by_a_base_model_or_by_weights(fake: FakeTinker) -> None:
    fake.saved["tinker://run/sampler_weights/a"] = Weights()
    sample(open_engine(f"tinker={MODEL}"))
    sample(open_engine("tinker=tinker://run/sampler_weights/a"))
    opened = [body for path, body in fake.requests if path == "/api/v1/create_sampling_session"]
    assert [(body.get("base_model"), body.get("model_path")) for body in opened] == [
        (MODEL, None),
        (None, "tinker://run/sampler_weights/a"),
    ]
    assert fake.finished == [{"reason": {"type": "success"}, "detail": None}] * 2


def test_settings_that_are_left_open_mean_the_policy_itself(fake: FakeTinker) -> None:
    sample(TinkerEngine(MODEL))
    assert asked(fake) == {"max_tokens": 4, "temperature": 1.0, "top_k": -1, "top_p": 1.0}


@pytest.mark.parametrize(
    ("sampling", "stop"),
    [
        ({"stop_token_ids": (9, 8), "stop": ("\n",)}, [9, 8]),
        ({"stop": ("\n",)}, ["\n"]),
        ({"ignore_eos": True}, []),
        ({}, None),
    ],
)
def test_what_ends_a_reply(fake: FakeTinker, sampling: dict[str, Any], stop: Any) -> None:
    sample(TinkerEngine(MODEL), **sampling)
    assert asked(fake).get("stop") == stop


def test_settings_are_passed_on(fake: FakeTinker) -> None:
    sample(TinkerEngine(MODEL), temperature=0.5, top_p=0.9, top_k=20, seed=9)
    assert asked(fake) == {"max_tokens": 4, "temperature": 0.5, "top_k": 20, "top_p": 0.9, "seed": 9}
    sample(TinkerEngine(MODEL), top_k=0)
    assert asked(fake)["top_k"] == -1


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_p": 0.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": ((5, 1.0),)},
        {"min_tokens": 2},
        {"json_schema": {}},
    ],
)
def test_what_tinker_has_no_setting_for_is_refused(fake: FakeTinker, sampling: dict[str, Any]) -> None:
    [name] = sampling
    with pytest.raises(EngineError, match=f"can't sample with {name}") as caught:
        sample(TinkerEngine(MODEL), **sampling)
    assert caught.value.status == 400


def test_settings_that_ask_for_nothing_are_not_refused(fake: FakeTinker) -> None:
    sample(TinkerEngine(MODEL), min_p=0.0, presence_penalty=0.0, repetition_penalty=1.0, min_tokens=0)


@pytest.mark.parametrize(
    ("answer", "status"),
    [({"error": "too long", "category": "user"}, 400), ({"error": "no room", "category": "server"}, 502), (403, 502)],
)
def test_failures_keep_the_services_words(fake: FakeTinker, answer: Any, status: int) -> None:
    fake.failing["asample"] = answer
    with pytest.raises(EngineError, match=r"Tinker failed: .*(too long|no room|not to be had)") as caught:
        sample(TinkerEngine(MODEL))
    assert caught.value.status == status


def test_a_service_that_takes_too_long(fake: FakeTinker) -> None:
    fake.pace = 5.0
    with pytest.raises(EngineError, match=r"longer than 0\.3 seconds") as caught:
        sample(TinkerEngine(MODEL, timeout=0.3))
    assert caught.value.status == 504


def test_requests_end_with_the_weights_they_began_with(fake: FakeTinker) -> None:
    import tinker

    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    engine = TinkerEngine(training.save_weights_and_get_sampling_client(), weight_version="3")
    fake.pace = 0.1

    async def across() -> list[str | None]:
        request = SampleRequest(array(IDS, [5, 6, 7]), Sampling(max_tokens=4))

        async def once() -> str | None:
            return [one.weight_version async for one in engine.sample(request)][-1]

        early = asyncio.create_task(once())
        await asyncio.sleep(0.1)
        newer = await asyncio.to_thread(training.save_weights_and_get_sampling_client)
        engine.update(newer, "4")
        return [await early, await once(), (await engine.info()).weight_version]

    assert asyncio.run(across()) == ["3", "4", "4"]
    used = {body["sampling_session_id"] for path, body in fake.requests if path == "/api/v1/asample"}
    assert len(used) == 2
    service.close("success").result()


def test_before_it_is_started_and_after_it_is_closed(fake: FakeTinker) -> None:
    engine = TinkerEngine(MODEL)
    for said in ("has not been started", "was closed"):
        with pytest.raises(EngineError, match=said):
            asyncio.run(engine.info())
        asyncio.run(engine.close())
