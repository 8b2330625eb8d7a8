"""Several gateways that share sessions: any of them serves any session, also while gateways join and leave."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.call.core import Core
from agentcore_rl_toolkit.gateway.http.gateway_app import App
from agentcore_rl_toolkit.gateway.http.http_server import http_server
from agentcore_rl_toolkit.gateway.remote.frames import FrameReader
from agentcore_rl_toolkit.gateway.render.renderer import ChatRenderer
from agentcore_rl_toolkit.gateway.workers.members import check_peers, of_gateways
from agentcore_rl_toolkit.gateway.workers.worker_router import WorkerRouter
from support.gateway import gateway_tokenizer

KEY = {"Authorization": "Bearer admin"}


@dataclass
class Peer:
    """One gateway of several."""

    url: str
    core: Core
    router: WorkerRouter

    @property
    def sessions(self) -> set[str]:
        return {one["session_id"] for one in self.core.sessions.latest(1000)}


@asynccontextmanager
async def gateways(count: int, start_with: int) -> AsyncIterator[tuple[list[Peer], aiohttp.ClientSession]]:
    """Gateways on ports of their own, of which the first ones know each other."""
    async with AsyncExitStack() as stack:
        servers = []
        for _ in range(count):
            handlers: list[Any] = []
            handled = http_server(lambda request, at=handlers: at[0](request), max_body_bytes=1 << 20, body_seconds=60)
            stack.push_async_callback(handled.shutdown, 0.1)
            listening = await asyncio.get_running_loop().create_server(handled, "127.0.0.1", 0)
            stack.callback(listening.close)
            servers.append((f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", handlers))
        urls, peers = [url for url, _ in servers], []
        for number, (url, handlers) in enumerate(servers):
            core = Core(ScriptedEngine([]), ChatRenderer(gateway_tokenizer(), renderer="qwen3"))
            await core.start()
            stack.push_async_callback(core.close)
            app = App(core, admin_key="admin", url=lambda url=url: url)
            known = urls[:start_with] if number < start_with else [*urls[:start_with], url]
            paused, knows = lambda core=core: core.gate.paused, core.sessions.has
            router = WorkerRouter(
                *(app.handle, 0, [url]),
                mark="m",
                peers=known,
                peer=url,
                knows=knows,
                paused=paused,
                admit=app.check_admin,
            )
            stack.push_async_callback(router.close)
            handlers.append(router.handle)
            peers.append(Peer(url, core, router))
        yield peers, await stack.enter_async_context(aiohttp.ClientSession(headers=KEY))


async def ask(http: aiohttp.ClientSession, method: str, url: str, **more: Any) -> Any:
    async with http.request(method, url, **more) as said:
        return said.status, await said.read()


async def open_sessions(http: aiohttp.ClientSession, url: str, names: list[str]) -> None:
    opened = await asyncio.gather(*(ask(http, "POST", f"{url}/sessions", json={"session_id": name}) for name in names))
    assert {status for status, _ in opened} == {201}


async def readable(http: aiohttp.ClientSession, url: str, names: list[str]) -> bool:
    found = await asyncio.gather(*(ask(http, "GET", f"{url}/sessions/{name}/turns") for name in names))
    return {status for status, _ in found} == {200}


def test_any_gateway_serves_any_session() -> None:
    async def run() -> None:
        async with gateways(3, 3) as (peers, http):
            names = [f"s{number}" for number in range(60)]
            await open_sessions(http, peers[0].url, names)
            assert min(len(peer.sessions) for peer in peers) > 8
            for peer in peers:
                assert await readable(http, peer.url, names)
            _, body = await ask(http, "POST", f"{peers[2].url}/batch/fold", json={"session_ids": [*names, "missing"]})
            told = {said.session_id: said for said in FrameReader().feed(body)}
            assert set(told) == {*names, "missing"}
            assert [said.session_id for said in told.values() if said.trajectories is None] == ["missing"]
            assert (await ask(http, "POST", f"{peers[1].url}/pause"))[0] == 200
            assert all(peer.core.gate.paused for peer in peers), "whichever is asked tells all"

    asyncio.run(run())


def test_one_that_joins_takes_its_share_of_new_sessions_only() -> None:
    async def run() -> None:
        async with gateways(3, 2) as (peers, http):
            old, new = [f"old-{n}" for n in range(60)], [f"new-{n}" for n in range(60)]
            await open_sessions(http, peers[0].url, old)
            before = [peer.sessions for peer in peers]
            urls = [peer.url for peer in peers]
            assert (await ask(http, "PUT", f"{urls[2]}/peers", json={"peers": urls}))[0] == 200
            moved = [name for name in old if peers[0].router.owner(name) == 2]
            assert 8 < len(moved) < 35, "only what the new gateway owns has another owner"
            for url in urls:
                assert await readable(http, url, old), "sessions continue where they are"
            assert [peer.sessions for peer in peers] == before
            await open_sessions(http, urls[1], new)
            shares = Counter(peers[0].router.owner(name) for name in new)
            assert [len(peer.sessions & set(new)) for peer in peers] == [shares[number] for number in range(3)]
            assert min(shares.values()) > 8

    asyncio.run(run())


def test_one_that_has_died_can_be_taken_out() -> None:
    async def run() -> None:
        async with gateways(2, 2) as (peers, http):
            urls, dead = [peer.url for peer in peers], "http://127.0.0.1:9"
            assert (await ask(http, "PUT", f"{urls[0]}/peers", json={"peers": [*urls, dead]}))[0] == 200
            assert (await ask(http, "POST", f"{urls[0]}/pause"))[0] == 503
            assert (await ask(http, "PUT", f"{urls[0]}/peers", json={"peers": urls, "leaving": [dead]}))[0] == 503
            for url in urls:
                assert (await ask(http, "PUT", f"{url}/peers", json={"peers": urls}))[0] == 200
            assert (await ask(http, "POST", f"{urls[0]}/pause"))[0] == 200
            await open_sessions(http, urls[1], [f"s{number}" for number in range(20)])

    asyncio.run(run())


@pytest.mark.parametrize(
    ("other", "says"),
    [
        pytest.param({"mark": "of another key"}, "does not share its sessions", id="another admin key"),
        pytest.param({"workers": 2}, "another gateway has 1 workers, and this one 2", id="another number of workers"),
    ],
)
def test_one_that_can_share_nothing_does_not_start(other: dict[str, Any], says: str) -> None:
    async def run() -> None:
        async with gateways(2, 2) as (peers, _):
            own = peers[1].url
            urls = [own, f"{own}1"][: other.get("workers", 1)]
            known = [peer.url for peer in peers]
            joins = WorkerRouter(refuse, 0, urls, mark=other.get("mark", "m"), peers=known, peer=own)
            with pytest.raises(ConfigError, match=says):
                await joins.fetch_peers()
            await joins.close()

    asyncio.run(run())


async def refuse(request: Any) -> Any:
    raise AssertionError("it is asked nothing")


def test_one_that_leaves_keeps_its_sessions_and_gets_no_new_ones() -> None:
    async def run() -> None:
        async with gateways(2, 2) as (peers, http):
            old, new = [f"old-{n}" for n in range(20)], [f"new-{n}" for n in range(20)]
            first, second = (peer.url for peer in peers)
            await open_sessions(http, first, old)
            kept = peers[1].sessions
            asked = {"peers": [first], "leaving": [second]}
            assert (await ask(http, "PUT", f"{first}/peers", json=asked))[0] == 200
            await open_sessions(http, second, new)
            assert peers[1].sessions == kept
            for url in (first, second):
                assert await readable(http, url, [*old, *new])
            assert (await ask(http, "PUT", f"{first}/peers", json={"peers": ["nonsense"]}))[0] == 400

    asyncio.run(run())


def test_a_gateway_that_joins_or_leaves_moves_only_its_own_sessions() -> None:
    urls = [f"http://10.0.0.{number}:9000" for number in range(5)]
    names = [f"session-{number}" for number in range(500)]

    def owners(peers: list[str]) -> dict[str, str]:
        known = of_gateways(peers, peers[0], [peers[0], f"{peers[0]}1"], 0)
        return {name: known.members[known.owner(name)].name for name in names}

    before, after = owners(urls[:4]), owners(urls)
    moved = [name for name in names if before[name] != after[name]]
    assert all(after[name].startswith(urls[4]) for name in moved)
    assert 60 < len(moved) < 140


@pytest.mark.parametrize("peers", [["10.0.0.7:9000"], ["http://a/path"], ["http://a", "http://a/"], ["ftp://a"]])
def test_peers_are_addresses_of_different_gateways(peers: list[str]) -> None:
    with pytest.raises(ConfigError):
        check_peers(peers)
