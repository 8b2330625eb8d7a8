"""Who may talk to the gateway's port beside those who have a key: no web page, and for counters only its own user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.gateway.gateway import Gateway
from support.gateway import gateway, ids
from support.process import clean_env, free_port


@pytest.fixture(scope="module")
def running() -> Iterator[Gateway]:
    with gateway(ScriptedEngine(lambda request: ids("four"))) as running:
        yield running


@pytest.fixture(scope="module")
def public() -> Iterator[Gateway]:
    """On every address of the machine."""
    with gateway(ScriptedEngine(lambda request: ids("four")), host="0.0.0.0") as running:
        yield running


def routes(running: Gateway) -> list[tuple[str, str]]:
    session = running.open_session()
    agent = [("POST", f"{session['base_url']}/{path}") for path in ("chat/completions", "messages", "responses")]
    agent += [("GET", f"{session['base_url']}/models"), ("PUT", session["result_url"])]
    plain = [("GET", f"{running.url}/{name}") for name in ("health", "metrics", "openapi.json", "nonsense")]
    control = [("POST", f"{running.url}/{name}") for name in ("sessions", "pause", "drain", "resume")]
    return [*agent, *plain, *control, ("OPTIONS", f"{running.url}/sessions")]


def assert_refused(running: Gateway, says: str, **headers: str) -> None:
    before = running.core.sessions.opened
    made = routes(running)
    for method, url in made:
        given = {"Authorization": f"Bearer {running.admin_key}"} | headers
        response = httpx.request(method, url, headers=given, content=b"{}")
        assert response.status_code == 403, (method, url, response.text)
        assert says in response.text, (method, url, response.text)
        assert "error" in response.json()
    assert running.core.sessions.opened == before + 1  # that of `routes`


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_web_page_can_ask_for_nothing(running: Gateway, public: Gateway, headers: dict[str, str]) -> None:
    """Not even with the keys."""
    for one in (running, public):
        assert_refused(one, "web page", **headers)


def test_on_loopback_its_names_are_loopbacks(running: Gateway) -> None:
    assert_refused(running, "--allow-host", Host="evil.example")
    for host in ("localhost:9000", "127.0.0.1", "[::1]:1"):
        assert httpx.get(f"{running.url}/health", headers={"Host": host}).status_code == 200


def test_names_can_be_added() -> None:
    settings: dict[str, Any] = {"public_url": "http://gateway.internal:9000/at", "allow_hosts": ["tunnel.example"]}
    with gateway([], port=(port := free_port()), **settings):
        for host, status in (("gateway.internal", 200), ("tunnel.example:80", 200), ("evil.example", 403)):
            url = f"http://127.0.0.1:{port}/health"
            assert httpx.get(url, headers={"Host": host}).status_code == status
    with pytest.raises(ConfigError, match="not the name of a host"), gateway([], allow_hosts=["http://x"]):
        pass


def test_beyond_loopback_any_name_is_served(public: Gateway) -> None:
    """Agents reach it under names that only their network knows; keys are what protects it."""
    assert httpx.get(f"{public.url}/health", headers={"Host": "gateway.internal"}).status_code == 200


# Counters


def metrics(running: Gateway, **headers: str) -> int:
    return httpx.get(f"{running.url}/metrics", headers=headers).status_code


def test_counters_are_for_the_gateways_user_and_for_the_admin(running: Gateway, public: Gateway) -> None:
    assert metrics(running) == 200
    assert metrics(public) == 401
    assert metrics(public, Authorization="Bearer wrong") == 401
    assert metrics(public, Authorization=f"Bearer {public.admin_key}") == 200


def test_another_user_of_this_machine(running: Gateway) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    code = (
        "import encodings.idna, http.client, os, sys\n"
        "os.setresuid(12345, 12345, 12345)\n"
        "for path in sys.argv[2:]:\n"
        "    c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=30)\n"
        "    c.request('GET', path); print(c.getresponse().status)\n"
    )
    command = [sys.executable, "-c", code, running.url.rpartition(":")[2], "/metrics", "/health", "/openapi.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_env(), timeout=60)
    assert done.stdout.split() == ["401", "200", "200"]
