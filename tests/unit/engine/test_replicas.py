"""Which replica gets a request, which is left out, and when another one may try."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, cast

import pytest

from agentcore_rl_toolkit.engine import IDS, EngineInfo, SampleRequest, Sampling, open_engine
from agentcore_rl_toolkit.engine.remote.sglang import SglangEngine
from agentcore_rl_toolkit.engine.remote.vllm import VllmEngine
from agentcore_rl_toolkit.engine.replicas import Replicas
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.errors import ConfigError, EngineError
from support.fake_sglang import FakeSglang
from support.fake_vllm import FakeVllm
from support.loop import LoopThread, loop_thread
from support.process import free_port
from support.runtime import eventually


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with loop_thread() as thread:
        yield thread


class Server(ScriptedEngine):
    """Answers with its own number, or with an error while it has one."""

    def __init__(self, number: int) -> None:
        super().__init__(lambda _: self.line())
        self.number = number
        self.error: EngineError | None = None
        self.first: list[int] = []  # said before the error
        self.down = False
        self.refuses: tuple[str, ...] = ()
        self.pauses = 0

    def line(self) -> ScriptedLine:
        if self.error is not None and not self.first:
            raise self.error
        return ScriptedLine(self.first or [self.number], fails=self.error)

    async def info(self) -> EngineInfo:
        if self.down:
            raise EngineError("nobody there", status=503)
        return await super().info()

    async def pause(self) -> None:
        self.obey("pause")
        self.pauses += 1
        await super().pause()

    async def resume(self) -> None:
        self.obey("resume")
        await super().resume()

    def obey(self, what: str) -> None:
        if self.down or what in self.refuses:
            raise EngineError("nobody there" if self.down else f"no {what}", status=503)


def wish(session: str = "") -> SampleRequest:
    return SampleRequest(array(IDS, [1]), Sampling(), session_id=session)


def ask(loop: LoopThread, replicas: Replicas, session: str = "") -> int:
    """The number of the replica that answered."""
    return loop.collect(replicas.sample(wish(session)))[-1].token_ids[0]


def trio(**options: Any) -> tuple[list[Server], Replicas]:
    servers = [Server(i) for i in range(3)]
    return servers, Replicas(servers, **options)


def test_a_session_stays_where_it_is_and_sessions_spread(loop: LoopThread) -> None:
    _, replicas = trio()
    homes = {f"session-{i}": ask(loop, replicas, f"session-{i}") for i in range(90)}
    assert all(ask(loop, replicas, session) == home for session, home in homes.items())
    assert min(Counter(homes.values()).values()) > 15


@pytest.mark.parametrize("names", ["k{}", "session-{}", "{:024x}"])
@pytest.mark.parametrize("count", [2, 3, 12])
def test_every_replica_has_its_share_of_sessions(count: int, names: str) -> None:
    replicas = Replicas([Server(i) for i in range(count)])
    homes = [replicas.pick(names.format(i)) for i in range(1000 * count)]
    shares = Counter(home.number for home in homes if home is not None)
    assert len(shares) == count
    assert all(850 < share < 1150 for share in shares.values())


def test_who_has_no_session_goes_where_least_is_running(loop: LoopThread) -> None:
    _, replicas = trio()
    for replica, running in zip(replicas.replicas, (5, 1, 3), strict=True):
        replica.in_flight = running
    assert ask(loop, replicas) == 1


def test_an_overloaded_home_is_left_for_once(loop: LoopThread) -> None:
    _, replicas = trio(slack=4)
    home = ask(loop, replicas, "s")
    replicas.replicas[home].in_flight = 4
    assert ask(loop, replicas, "s") == home
    replicas.replicas[home].in_flight = 5
    assert ask(loop, replicas, "s") != home
    replicas.replicas[home].in_flight = 0
    assert ask(loop, replicas, "s") == home


def test_only_the_sessions_of_the_one_that_left_move(loop: LoopThread) -> None:
    _, replicas = trio()
    homes = {f"{i}": ask(loop, replicas, f"{i}") for i in range(60)}
    replicas.replicas[1].ejected = True
    for session, home in homes.items():
        now = ask(loop, replicas, session)
        assert now == home if home != 1 else now != 1
    replicas.replicas[1].ejected = False
    assert all(ask(loop, replicas, session) == home for session, home in homes.items())


def test_what_is_running_is_counted(loop: LoopThread) -> None:
    servers, replicas = trio()
    servers[0].delay = 60

    async def count() -> list[int]:
        items = cast(Any, replicas.sample(wish()))
        task = asyncio.create_task(anext(items))
        while not servers[0].requests:  # noqa: ASYNC110
            await asyncio.sleep(0)
        during = replicas.replicas[0].in_flight
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [during, replicas.replicas[0].in_flight]

    assert loop.run(count()) == [1, 0]
    assert len(servers[0].aborted) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_another_one_tries_where_nothing_was_sampled(loop: LoopThread, status: int) -> None:
    servers, replicas = trio()
    home = ask(loop, replicas, "s")
    servers[home].error = EngineError("no", status=status)
    assert ask(loop, replicas, "s") != home


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (EngineError("your fault", status=400), []),
        (EngineError("no such model", status=404), []),
        (EngineError("who knows", sampled_any=True), []),
        (EngineError("died", sampled_any=True), [7]),
        (EngineError("died and forgot to say so"), [7]),
    ],
)
def test_other_errors_are_not_retried_on_another_replica(
    loop: LoopThread, error: EngineError, first: list[int]
) -> None:
    servers, replicas = trio()
    home = ask(loop, replicas, "s")
    servers[home].error, servers[home].first = error, first
    before = sum(len(server.requests) for server in servers)
    with pytest.raises(EngineError) as caught:
        ask(loop, replicas, "s")
    assert caught.value is error
    assert sum(len(server.requests) for server in servers) == before + 1


def test_each_replica_is_tried_once_and_the_last_error_is_raised(loop: LoopThread) -> None:
    servers, replicas = trio()
    for server in servers:
        server.error = EngineError(f"no {server.number}", status=503)
    with pytest.raises(EngineError, match=r"no \d"):
        ask(loop, replicas, "s")
    assert [len(server.requests) for server in servers] == [1, 1, 1]


def test_failing_again_and_again_leads_out_and_a_check_back_in(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=2)
    home = ask(loop, replicas, "s")
    servers[home].error, servers[home].down = EngineError("no", status=502), True
    asked = len(servers[home].requests)
    for _ in range(5):
        assert ask(loop, replicas, "s") != home
    assert len(servers[home].requests) == asked + 2
    assert replicas.replicas[home].ejected
    loop.run(replicas.check())
    assert replicas.replicas[home].ejected
    servers[home].error, servers[home].down = None, False
    loop.run(replicas.check())
    assert not replicas.replicas[home].ejected
    assert ask(loop, replicas, "s") == home


def test_a_success_makes_failures_be_forgotten(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=2)
    home = ask(loop, replicas, "s")
    for _ in range(3):
        servers[home].error = EngineError("no", status=502)
        ask(loop, replicas, "s")
        servers[home].error = None
        ask(loop, replicas, "s")
    assert not replicas.replicas[home].ejected


@pytest.mark.parametrize(
    "error",
    [EngineError("later", status=429), EngineError("busy", status=503, retry_after=1), EngineError("bad", status=400)],
)
def test_an_answer_in_good_health_does_not_lead_out(loop: LoopThread, error: EngineError) -> None:
    servers, replicas = trio(eject_after=1)
    home = ask(loop, replicas, "s")
    servers[home].error = error
    try:
        ask(loop, replicas, "s")
    except EngineError:
        assert error.status == 400
    assert not replicas.replicas[home].ejected


def test_health_is_checked_without_requests(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=2, check_every=0.01)

    async def wait() -> None:
        await replicas.start()
        servers[1].down = True
        while not replicas.replicas[1].ejected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        servers[1].down = False
        while replicas.replicas[1].ejected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await replicas.close()

    loop.run(wait())


def test_a_check_outlives_whatever_a_server_says_of_itself(loop: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Server):
        broken = False

        async def info(self) -> EngineInfo:
            if self.broken:
                raise KeyError("max_model_len")
            return await super().info()

    servers = [Odd(0), Odd(1)]
    replicas = Replicas(servers, check_every=0.01)
    loop.run(replicas.start())
    servers[0].broken = True
    eventually(lambda: replicas.replicas[0].ejected)
    servers[0].broken = False
    eventually(lambda: not replicas.replicas[0].ejected)
    loop.run(replicas.close())
    assert any(record.levelname == "ERROR" and record.exc_info for record in caplog.records)


def test_who_is_not_there_at_the_start_is_left_out_at_once(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=3, check_every=60)
    servers[1].down = True
    loop.run(replicas.start())
    assert [replica.ejected for replica in replicas.replicas] == [False, True, False]
    assert [replica.failures for replica in replicas.replicas] == [0, 3, 0]
    loop.run(replicas.close())


def test_with_all_of_them_out_one_is_still_tried(loop: LoopThread) -> None:
    _, replicas = trio()
    for replica in replicas.replicas:
        replica.ejected = True
    home = ask(loop, replicas, "s")
    assert not replicas.replicas[home].ejected


def test_a_pause_reaches_all_also_those_who_come_back(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=1)
    servers[2].down = True
    loop.run(replicas.check())
    loop.run(replicas.pause())
    assert [server.pauses for server in servers] == [1, 1, 0]
    servers[2].down = False
    loop.run(replicas.check())
    assert [server.pauses for server in servers] == [1, 1, 1]


def test_a_replica_away_during_a_resume_resumes_when_it_is_back(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=1)
    loop.run(replicas.pause())
    servers[2].down = True
    loop.run(replicas.check())
    loop.run(replicas.resume())
    assert [server.paused for server in servers] == [False, False, True]
    servers[2].down, servers[2].refuses = False, ("resume",)
    loop.run(replicas.check())
    assert replicas.replicas[2].ejected  # it is there, and gets no calls while it is paused
    servers[2].refuses = ()
    loop.run(replicas.check())
    assert not servers[2].paused
    assert not replicas.replicas[2].ejected


def test_a_replica_that_was_away_resumes_even_without_others(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=1)
    loop.run(replicas.pause())
    for server in servers:
        server.down = True
    loop.run(replicas.check())
    loop.run(replicas.resume())
    for server in servers:
        server.down = False
    home = ask(loop, replicas, "s")
    assert [server.paused for server in servers] == [number != home for number in range(3)]
    assert [replica.ejected for replica in replicas.replicas] == [number != home for number in range(3)]


def test_who_comes_back_during_a_resume_is_not_left_paused(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=1)
    servers[2].down = True
    loop.run(replicas.check())
    loop.run(replicas.pause())

    async def cross() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow_pause() -> None:
            begun.set()
            await go_on.wait()
            await ScriptedEngine.pause(servers[2])

        servers[2].down, servers[2].pause = False, slow_pause  # type: ignore[method-assign]
        checking = asyncio.create_task(replicas.check())
        await begun.wait()
        await replicas.resume()
        go_on.set()
        await checking

    loop.run(cross())
    assert [server.paused for server in servers] == [False, False, False]


def test_a_call_that_ends_on_one_that_was_left_out_does_not_take_it_back(loop: LoopThread) -> None:
    servers, replicas = trio()
    servers[0].first, servers[0].error = [1, 2], None

    async def end_it() -> None:
        items = cast(Any, replicas.sample(wish()))
        await anext(items)
        replicas.replicas[0].ejected = True
        async for _ in items:
            pass

    loop.run(end_it())
    assert replicas.replicas[0].ejected


def test_a_failed_pause_is_raised_and_undone(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=1)
    servers[0].refuses = ("pause",)
    with pytest.raises(EngineError, match="no pause"):
        loop.run(replicas.pause())
    assert [server.pauses for server in servers] == [0, 1, 1]
    assert [server.paused for server in servers] == [False, False, False]
    servers[1].down = True
    loop.run(replicas.check())
    servers[1].down = False
    loop.run(replicas.check())
    assert not servers[1].paused  # nor is one that comes back


def test_a_second_pause_that_failed_leaves_the_first(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=1)
    loop.run(replicas.pause())
    servers[0].refuses = ("pause",)
    with pytest.raises(EngineError, match="no pause"):
        loop.run(replicas.pause())
    assert [server.paused for server in servers] == [True, True, True]


def test_a_resume_that_failed_leaves_those_who_come_back_paused(loop: LoopThread) -> None:
    servers, replicas = trio(eject_after=1)
    loop.run(replicas.pause())
    servers[0].refuses, servers[1].down = ("resume",), True
    loop.run(replicas.check())
    with pytest.raises(EngineError, match="no resume"):
        loop.run(replicas.resume())
    servers[1].down = False
    loop.run(replicas.check())
    assert servers[1].paused
    servers[0].refuses = ()
    loop.run(replicas.resume())
    assert [server.paused for server in servers] == [False, False, False]


def test_who_may_be_paused_still_is_left_out(loop: LoopThread) -> None:
    servers, replicas = trio()
    servers[0].refuses, servers[1].refuses = ("pause",), ("resume",)
    with pytest.raises(EngineError, match="no pause"):
        loop.run(replicas.pause())
    assert [replica.ejected for replica in replicas.replicas] == [False, True, False]
    servers[1].refuses = ()
    loop.run(replicas.check())
    assert not servers[1].paused
    assert not replicas.replicas[1].ejected


def test_info_comes_from_one_that_is_there(loop: LoopThread) -> None:
    servers, replicas = trio()
    servers[0].down = True
    assert loop.run(replicas.info()).models == ("scripted",)
    servers[1].down = servers[2].down = True
    with pytest.raises(EngineError, match="nobody there"):
        loop.run(replicas.info())


def test_a_server_that_is_down_and_one_that_is_not(loop: LoopThread) -> None:
    with FakeVllm().serving() as fake:
        replicas = Replicas([VllmEngine(f"http://127.0.0.1:{free_port()}"), VllmEngine(fake.url)])
        for i in range(6):
            request = SampleRequest(array(IDS, [5, 6]), Sampling(max_tokens=3), session_id=f"s{i}")
            assert sum(len(item.token_ids) for item in loop.collect(replicas.sample(request))) == 3
        loop.run(replicas.close())


def test_closing_it_reaches_the_replica(loop: LoopThread) -> None:
    servers, replicas = trio()

    async def leave() -> None:
        for server in servers:
            server.first, server.error = [1, 2, 3], EngineError("never")
        async with aclosing(cast(Any, replicas.sample(wish()))) as items:
            await anext(items)

    loop.run(leave())
    assert sum(len(server.aborted) for server in servers) == 1


def test_specs() -> None:
    one = open_engine("vllm=http://a:1")
    assert isinstance(one, VllmEngine)
    assert (one.mode, one.http.url) == ("tokens", "http://a:1")
    assert open_engine(["vllm-generate=http://a"]).mode == "generate"  # type: ignore[attr-defined]
    assert isinstance(open_engine("sglang=http://a:1"), SglangEngine)
    for spec in ("vllm=http://a, http://b?x=1,sglang=http://c", ["vllm=http://a", "http://b", "sglang=http://c"]):
        several = open_engine(spec)
        assert isinstance(several, Replicas)
        assert [type(replica.engine) for replica in several.replicas] == [VllmEngine, VllmEngine, SglangEngine]


@pytest.mark.parametrize("spec", ["", "http://a", "vllm=", "vllm", "gpt=http://a", "vllm=http://a,", "vllm=a", []])
def test_specs_that_are_none(spec: Any) -> None:
    with pytest.raises(ConfigError, match="hint:"):
        open_engine(spec)


def homes_of(replicas: Replicas, *sessions: str) -> list[int]:
    return [replica.number for session in sessions if (replica := replicas.pick(session)) is not None]


def test_new_sessions_go_where_the_cache_has_room(loop: LoopThread) -> None:
    with FakeVllm().serving() as full, FakeVllm().serving() as free:
        full.kv_used, free.kv_used = 0.2, 0.2
        replicas = Replicas([VllmEngine(full.url), VllmEngine(free.url)])
        loop.run(replicas.start())
        early = {name: home for name in map(str, range(40)) for home in homes_of(replicas, name)}
        assert set(early.values()) == {0, 1}
        full.kv_used, full.kv_running, free.kv_running = 0.9, 9, 20
        loop.run(replicas.check())
        assert set(homes_of(replicas, *(f"new-{n}" for n in range(20)))) == {1}
        assert all(homes_of(replicas, name) == [home] for name, home in early.items()), "their prefix is cached there"
        full.kv_used, full.kv_waiting = 0.15, 60  # little in use, and a long queue
        loop.run(replicas.check())
        assert set(homes_of(replicas, *(f"newer-{n}" for n in range(20)))) == {1}
        loop.run(replicas.close())


def test_many_sessions_between_two_looks_dont_go_to_one_replica(loop: LoopThread) -> None:
    with FakeVllm().serving() as one, FakeVllm().serving() as other:
        one.kv_used, one.kv_running, other.kv_used, other.kv_running = 0.5, 10, 0.2, 4
        replicas = Replicas([VllmEngine(one.url), VllmEngine(other.url)])
        loop.run(replicas.start())
        shares = Counter(homes_of(replicas, *(f"s{n}" for n in range(40))))
        assert min(shares.values()) > 10
        loop.run(replicas.close())


def test_replicas_come_and_go_while_others_sample(loop: LoopThread) -> None:
    servers = [Server(number) for number in range(3)]
    servers[0].first, servers[0].delay = [0, 0, 0], 0.05
    replicas = Replicas(servers[:2], names=["a", "b"])
    loop.run(replicas.start())
    home = next(name for name in map(str, range(40)) if homes_of(replicas, name) == [0])
    stays = [name for name in map(str, range(40)) if homes_of(replicas, name) == [1]]

    async def change() -> int:
        items = replicas.sample(SampleRequest(array(IDS, [1]), Sampling(), session_id=home))
        count = len((await anext(items)).token_ids)
        await replicas.pause()
        await replicas.change({"b": lambda: servers[1], "c": lambda: servers[2]})
        count += sum([len(item.token_ids) async for item in items])
        return count

    assert loop.run(change()) == 3, "one that leaves ends what it samples"
    assert [replica.name for replica in replicas.replicas] == ["b", "c"]
    assert servers[2].paused, "one that joins is paused as the others are"
    assert not replicas.replicas[1].ejected
    loop.run(replicas.resume())
    moved = [name for name in stays if homes_of(replicas, name) != [1]]
    assert 0 < len(moved) < len(stays), "it takes its own share only"
    with pytest.raises(ConfigError, match="no engine was given"):
        loop.run(replicas.change({}))
    loop.run(replicas.close())


@pytest.mark.parametrize(("kind", "fake"), [("vllm", FakeVllm), ("sglang", FakeSglang)])
def test_a_server_that_wants_a_key_gets_the_one_in_the_environment(
    kind: str, fake: type[FakeVllm | FakeSglang], loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake(api_key="secret").serving() as server:
        engine = open_engine(f"{kind}={server.url}")
        with pytest.raises(
            EngineError, match=r"answered 401: .*\nhint: set AGENTCORE_RL_ENGINE_API_KEY to the server's"
        ):
            loop.run(engine.info())
        loop.run(engine.close())
        monkeypatch.setenv("AGENTCORE_RL_ENGINE_API_KEY", "secret")
        engine = open_engine(f"{kind}={server.url}")
        assert loop.run(engine.info()).models == ("fake/model",)
        loop.run(engine.close())
