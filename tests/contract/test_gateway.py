"""What rollouts need of a gateway, wherever it runs. To add a place, put a context manager into `PLACES`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from agentcore_rl_toolkit.engine.base import EngineLoad, SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import GatewayFault
from agentcore_rl_toolkit.gateway.base import RolloutGateway
from agentcore_rl_toolkit.gateway.record.trajectory import Trajectories
from agentcore_rl_toolkit.gateway.remote.gateway_client import GatewayClient
from agentcore_rl_toolkit.gateway.remote.gateway_processes import GatewayProcesses
from support.gateway import MODEL, client, gateway, gateway_tokenizer, ids, in_thread, text_of

USER = {"role": "user", "content": "How is the weather?"}


def here(engine: ScriptedEngine) -> AbstractContextManager[RolloutGateway]:
    return gateway(engine)


@contextmanager
def elsewhere(engine: ScriptedEngine) -> Iterator[RolloutGateway]:
    with gateway(engine) as served, GatewayClient(served.url, admin_key=served.admin_key, patience=5) as reached:
        yield reached


class Changing:
    """An engine whose script each test replaces: processes take seconds to start."""

    current = ScriptedEngine([])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Changing, GatewayProcesses]]:
    engine = Changing()
    with GatewayProcesses(engine, gateway_tokenizer(), workers=2) as running:
        yield engine, running


PLACES = {"here": here, "elsewhere": elsewhere}
Open = Callable[[ScriptedEngine], AbstractContextManager[RolloutGateway]]


@pytest.fixture(params=[*PLACES, "beside"])
def place(request: pytest.FixtureRequest) -> Open:
    if request.param != "beside":
        return PLACES[request.param]
    changing, running = request.getfixturevalue("workers")

    @contextmanager
    def beside(engine: ScriptedEngine) -> Iterator[RolloutGateway]:
        changing.current = engine
        yield running

    return beside


def weather(request: SampleRequest) -> list[int]:
    return ids("It is sunny.")


def say(session: dict[str, Any], *messages: dict[str, Any]) -> str:
    answer = client(session).chat.completions.create(model=MODEL, messages=list(messages or (USER,)))
    return str(answer.choices[0].message.content)


def test_a_session_is_folded_with_every_token_version_and_word(place: Open) -> None:
    engine = ScriptedEngine(weather, weight_version="7", routes_width=2)
    with place(engine) as running:
        session = running.open_session(input_id="row-1")
        reply = say(session)
        say(session, USER, {"role": "assistant", "content": reply}, {"role": "user", "content": "Thanks!"})
        folded = running.trajectories(session["session_id"])
    assert isinstance(folded, Trajectories)
    (row,) = folded.rows
    trained = [token for token, train in zip(row.token_ids, row.loss_mask, strict=True) if train]
    assert text_of(trained) == "It is sunny.<|im_end|>" * 2
    assert {version for version, _, _ in row.versions} == {"7"}
    assert row.trained == folded.fidelity.trained == 2 * len(ids("It is sunny."))
    assert np.isnan(row.logprobs[row.loss_mask == 0]).all()
    assert np.isfinite(row.logprobs[row.loss_mask == 1]).all()
    assert row.routes is not None
    assert row.routes.data.shape == (len(row.token_ids), 2)
    assert [span.turn for span in row.spans] == [0, 1]
    assert folded.transcript.conversation(1)[0] == USER
    assert folded.model_seconds > 0
    row.loss_mask[:] = 0  # a trainer's own copy


def test_enforced_settings_reach_the_engine(place: Open) -> None:
    engine = ScriptedEngine(weather)
    with place(engine) as running:
        say(running.open_session(enforced={"temperature": 0.25}, seed=3))
    assert engine.requests[0].sampling.temperature == 0.25
    assert engine.requests[0].sampling.seed is not None


def test_a_session_needs_settings_that_it_knows(place: Open) -> None:
    with place(ScriptedEngine(weather)) as running:
        for wrong in ({"nonsense": 1}, {"enforced": {"nonsense": 1}}, {"session_id": "not an id"}):
            with pytest.raises(GatewayFault) as refused:
                running.open_session(**wrong)
            assert refused.value.status == 400


def test_an_id_is_that_of_one_session(place: Open) -> None:
    with place(ScriptedEngine(weather)) as running:
        running.open_session(session_id="one", input_id="a")
        with pytest.raises(GatewayFault) as refused:
            running.open_session(session_id="one", input_id="b")
        assert (refused.value.status, refused.value.code) == (409, "session_exists")


def test_a_deleted_session_is_gone(place: Open) -> None:
    with place(ScriptedEngine(weather)) as running:
        with pytest.raises(GatewayFault) as refused:
            running.trajectories("never")
        assert refused.value.code == "session_unknown"
        session = running.open_session()
        running.delete_session(session["session_id"])
        for gone in (running.trajectories, running.delete_session):
            with pytest.raises(GatewayFault) as refused:
                gone(session["session_id"])
            assert refused.value.code == "session_closed"


def test_a_pause_holds_calls_until_the_new_weights_are_named(place: Open) -> None:
    with place(ScriptedEngine(weather)) as running:
        running.pause()
        running.drain()
        session = running.open_session()
        said = in_thread(lambda: say(session))
        running.drain()  # a call that waits is not being sampled
        assert running.trajectories(session["session_id"]).fidelity.turns == 0
        running.resume("update-2")
        assert said() == "It is sunny."
        (row,) = running.trajectories(session["session_id"]).rows
        assert {version for version, _, _ in row.versions} == {"update-2"}


def test_it_says_what_it_serves_and_counts(place: Open) -> None:
    with place(ScriptedEngine(weather)) as running:
        assert running.model == MODEL
        assert running.url.startswith("http://127.0.0.1:")
        assert "renderer" in running.abilities.line
        before = running.metrics()
        session = running.open_session()
        say(session)
        counts = running.metrics()
    assert counts["turns_total"] - before.get("turns_total", 0) == 1
    assert counts["sessions_open"] - before["sessions_open"] == 1
    assert counts["in_flight"] == 0


class Busy(ScriptedEngine):
    """An engine that tells its load."""

    async def load(self) -> EngineLoad:
        return EngineLoad(0.25, 3, 1, 7)


def test_it_says_how_busy_an_engine_is(place: Open) -> None:
    for engine, told in ((Busy(weather), [EngineLoad(0.25, 3, 1, 7)]), (ScriptedEngine(weather), [])):
        with place(engine) as running:
            assert list(asyncio.run(running.engine_loads_async()).values()) == told


def test_hundreds_of_sessions_at_a_time(place: Open) -> None:
    """One that is refused costs the others nothing."""

    async def one(running: RolloutGateway, number: int) -> str:
        session = await running.open_session_async(session_id=f"s{number}", input_id=f"row-{number}")
        folded = await running.trajectories_async("missing" if number == 7 else session["session_id"])
        assert folded.rows == ()
        await running.delete_session_async(session["session_id"])
        return str(session["session_id"])

    async def run(running: RolloutGateway) -> list[Any]:
        return await asyncio.gather(*(one(running, number) for number in range(600)), return_exceptions=True)

    with place(ScriptedEngine(weather)) as running:
        before = running.metrics()["sessions_open"]
        ended = asyncio.run(run(running))
        assert isinstance(ended[7], GatewayFault)
        assert ended[:7] + ended[8:] == [f"s{number}" for number in range(600) if number != 7]
        assert running.metrics()["sessions_open"] == before + 1
