"""Sampling through verl's server client, with one that answers by script."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentcore_rl_toolkit.backends.verl.verl_engine import VerlEngine
from agentcore_rl_toolkit.engine.base import IDS, Sampled, SampleRequest, Sampling
from agentcore_rl_toolkit.errors import EngineError

STOP = 9


class Client:
    """verl's client: what it was asked, and what it says."""

    def __init__(self, *said: Any) -> None:
        self.said = list(said)
        self.asked: list[tuple[str, list[int], dict[str, Any]]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked.append((request_id, prompt_ids, sampling_params))
        said = self.said.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


def output(
    ids: Sequence[int], reason: str | None = "completed", *, steps: tuple[Any, Any] = (3, 3), **fields: Any
) -> Any:
    extra = {"global_steps": steps[1], "min_global_steps": steps[0], "max_global_steps": steps[1]}
    known = {"log_probs": [-0.5] * len(ids), "routed_experts": None, "extra_fields": extra}
    return SimpleNamespace(token_ids=list(ids), stop_reason=reason, **known | fields)


def engine(client: Client, **settings: Any) -> VerlEngine:
    return VerlEngine(client, **{"model": "policy", "context_length": 32, "stop_ids": [STOP]} | settings)


def sampled(engine: VerlEngine, prompt: Sequence[int] = (1, 2, 3), **sampling: Any) -> list[Sampled]:
    async def run() -> list[Sampled]:
        request = SampleRequest(array(IDS, prompt), Sampling(**sampling), session_id="session")
        return [part async for part in engine.sample(request)]

    return asyncio.run(run())


def test_ids_go_in_and_come_out() -> None:
    client = Client(output([4, STOP]))
    (only,) = sampled(engine(client), max_tokens=5, temperature=0.7, top_k=20, stop_token_ids=(8,))
    assert (only.token_ids, only.logprobs, only.finish) == ([4, STOP], [-0.5, -0.5], "stop")
    assert (only.weight_version, only.versions) == ("3", (("3", 2),))
    ((session, prompt, params),) = client.asked
    assert (session, prompt) == ("session", [1, 2, 3])
    known = {"max_tokens": 5, "temperature": 0.7, "top_k": 20, "stop_token_ids": [8], "logprobs": True}
    assert params == known


@pytest.mark.parametrize(
    ("ids", "reason", "finish"),
    [
        ([4, 5, 6], "completed", "length"),  # as many as were asked for
        ([4, 5, STOP], "completed", "stop"),
        ([4, 5], "completed", "stop"),
        ([4], "length", "length"),
        ([4], "aborted", "abort"),
        ([4], "abort", "abort"),
        ([4], None, "stop"),
    ],
)
def test_why_it_ended(ids: list[int], reason: str | None, finish: str) -> None:
    (only,) = sampled(engine(Client(output(ids, reason))), max_tokens=3)
    assert only.finish == finish


def test_there_is_as_much_room_as_the_context_has() -> None:
    client = Client(output([4]), output([4]))
    sampled(engine(client), range(30))
    sampled(engine(client), range(30), max_tokens=50)
    assert [params["max_tokens"] for _, _, params in client.asked] == [2, 2]
    with pytest.raises(EngineError, match="32 tokens leaves no space") as refused:
        sampled(engine(client), range(32))
    assert refused.value.status == 400


def test_weights_that_changed_on_the_way() -> None:
    made = engine(Client(output([4, 5, 6], steps=(2, 4)), output([4], steps=(None, None)), output([4], steps=(3, 3))))
    (only,) = sampled(made)
    assert only.versions == (("2", 2), ("4", 1))
    (only,) = sampled(made)
    assert (only.weight_version, only.versions) == (None, ())
    sampled(made)
    assert made.version == 4  # the latest there has been
    assert asyncio.run(made.info()).weight_version == "4"


def test_stop_strings_are_left_to_the_gateway_token_by_token() -> None:
    client = Client(output([4, 5, 6], steps=(2, 4)))
    parts = sampled(engine(client), stop=("END",))
    assert [(part.token_ids, part.finish) for part in parts] == [([4], None), ([5], None), ([6], None), ([], "stop")]
    assert {part.weight_version for part in parts} == {"2"}  # who stops early has the oldest
    assert "stop" not in client.asked[0][2]


def test_sglang_has_other_names() -> None:
    client = Client(output([4]), output([4]))
    asked: dict[str, Any] = {"min_tokens": 2, "seed": 7, "logit_bias": ((5, 1.0),)}
    sampled(engine(client, server="sglang"), **asked)
    sampled(engine(client), **asked)
    theirs, vllms = (params for _, _, params in client.asked)
    assert {name: theirs[name] for name in ("min_new_tokens", "sampling_seed", "logit_bias")} == {
        "min_new_tokens": 2,
        "sampling_seed": 7,
        "logit_bias": {"5": 1.0},
    }
    assert {name: vllms[name] for name in asked} == asked | {"logit_bias": {5: 1.0}}


def test_a_schema_is_refused() -> None:
    with pytest.raises(EngineError, match="don't take a JSON schema") as refused:
        sampled(engine(Client()), json_schema={})
    assert refused.value.status == 400


def test_expert_routes_are_from_the_first_token_on() -> None:
    experts = np.arange(5 * 6).reshape(5, 3, 2)
    made = engine(Client(output([4, 5, 6], routed_experts=experts), output([4], routed_experts=experts[0])))
    (only,) = sampled(made)
    assert only.routes is not None
    assert (only.routes.start, only.routes.count, only.routes.width) == (0, 5, 6)
    assert np.frombuffer(only.routes.data, "<u2").reshape(5, 3, 2).tolist() == experts.tolist()
    assert made.route_shape == (3, 2)
    with pytest.raises(EngineError, match="tokens × layers × experts"):
        sampled(made)


def test_missing_logprobs_are_missing() -> None:
    made = engine(Client(output([4, 5], log_probs=None), output([4, 5], log_probs=[-1.0])))
    assert [sampled(made)[0].logprobs for _ in range(2)] == [[None, None], [-1.0, None]]


def test_what_verl_raises_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="RuntimeError: the replica is gone"):
        sampled(engine(Client(RuntimeError("the replica is gone"))))


def test_what_was_given_up_at_once_is_asked_for_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    made = engine(Client(output([], "aborted"), output([4], "aborted")))
    assert [sampled(made)[0].finish for _ in range(2)] == ["abort", "abort"]
    assert len(waited) == 1


def test_a_pause_holds_requests_back() -> None:
    async def run() -> tuple[int, int]:
        client = Client(output([4]))
        made = engine(client)
        await made.start()
        await made.pause()
        request = SampleRequest(array(IDS, [1]), Sampling())
        waiting = asyncio.ensure_future(anext(aiter(made.sample(request))))
        await asyncio.sleep(0)
        before = len(client.asked)
        await made.resume()
        await waiting
        await made.close()
        return before, len(client.asked)

    assert asyncio.run(run()) == (0, 1)
