"""Two gateways behind nginx or Ray Serve, as docs/guides/gateway.md and ray.md show it: one address for any session."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agentcore_rl_toolkit.gateway.remote.gateway_client import GatewayClient
from support.bedrock import ARN, bedrock
from support.docs import ROOT, blocks
from support.fake_vllm import MODEL, FakeVllm
from support.process import clean_env, free_port, server, without_torch
from support.runtime import eventually
from support.tokenizers import make_tokenizer

has_nginx = shutil.which("nginx") is not None
has_ray_serve = all(importlib.util.find_spec(name) for name in ("ray", "grpc", "fastapi"))
KEY = "admin-behind-a-balancer"


@contextlib.contextmanager
def balanced(balancer: str, home: Path, engine: str) -> Iterator[str]:
    """The address of two gateways."""
    ports, port = [free_port(), free_port()], free_port()
    url, urls = f"http://127.0.0.1:{port}", [f"http://127.0.0.1:{one}" for one in ports]
    make_tokenizer().save_pretrained(home / "tokenizer")
    line = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "gateway", "serve", "--engine", engine]
    line += ["--tokenizer", str(home / "tokenizer"), "--renderer", "qwen3", "--peers", ",".join(urls)]
    env = clean_env(**without_torch()) | {"AGENTCORE_RL_ADMIN_KEY": KEY}
    with contextlib.ExitStack() as stack:
        for own, one in zip(ports, urls, strict=True):
            more = ["--port", str(own), "--peer-url", one, "--public-url", url]
            stack.enter_context(server([*line, *more], port=own, log=home / f"{own}.log", env=env, ready="/health"))
        command = nginx(home, port, ports) if balancer == "nginx" else ray_serve(home, port, ports)
        stack.enter_context(server(command, port=port, log=home / "balancer.log", env=clean_env(), ready="/health"))
        eventually(lambda: httpx.get(f"{url}/health").status_code == 200)
        yield url


def nginx(home: Path, port: int, ports: list[int]) -> list[str]:
    """With the page's configuration, on these ports."""
    page = shown_on("gateway.md", "proxy_pass", ports, "listen 80;", f"listen 127.0.0.1:{port};")
    file = home / "nginx.conf"
    places = "".join(f"{name}_temp_path {home};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    file.write_text(f"daemon off; pid {home}/pid; events {{}}\nhttp {{\naccess_log off;\n{places}{page}}}\n")
    return [shutil.which("nginx") or "", "-e", str(home / "error.log"), "-c", str(file)]


def ray_serve(home: Path, port: int, ports: list[int]) -> list[str]:
    """The page's program, on these ports, with a cluster of its own."""
    shown = '"host": "0.0.0.0", "port": 9000'
    page = shown_on("ray.md", "serve.ingress", ports, shown, f'"host": "127.0.0.1", "port": {port}')
    file = home / "balancer.py"
    file.write_text(f"import ray\nray.init(num_cpus=4, include_dashboard=False)\n{page}")
    return [sys.executable, str(file)]


def shown_on(name: str, has: str, ports: list[int], listens: str, here: str) -> str:
    """A page's block, with these ports."""
    (page,) = [block.code for block in blocks(ROOT / "docs" / "guides" / name) if has in block.code]
    for shown, own in (("10.0.0.7:9000", ports[0]), ("10.0.0.8:9000", ports[1])):
        assert shown in page
        page = page.replace(shown, f"127.0.0.1:{own}")
    assert listens in page
    return page.replace(listens, here)


@pytest.mark.parametrize(
    "balancer",
    [
        pytest.param("nginx", marks=pytest.mark.skipif(not has_nginx, reason="needs nginx")),
        pytest.param("ray", marks=pytest.mark.skipif(not has_ray_serve, reason="needs ray[serve]")),
    ],
)
def test_any_session_is_served_at_the_balancers_address(balancer: str, tmp_path: Path) -> None:
    with (
        FakeVllm().serving() as fake,
        balanced(balancer, tmp_path, f"vllm={fake.url}") as url,
        GatewayClient(url, admin_key=KEY) as gateway,
    ):
        sessions = [gateway.open_session(model=MODEL) for _ in range(6)]
        assert {session["base_url"].partition("/sessions/")[0] for session in sessions} == {url}
        for session in sessions:
            converse(session)
            with openai.OpenAI(base_url=session["base_url"], api_key="EMPTY", max_retries=0) as client:
                asked: Any = [{"role": "user", "content": "hello"}]
                stream = client.chat.completions.create(model=MODEL, messages=asked, max_tokens=4, stream=True)
                assert len(list(stream)) > 1
        assert [gateway.trajectories(session["session_id"]).fidelity.turns for session in sessions] == [2] * 6
        listed = httpx.get(f"{url}/sessions", headers={"Authorization": f"Bearer {KEY}"}, timeout=30).json()
        assert len(listed["sessions"]) == 6


def converse(session: dict[str, Any]) -> None:
    """With an ARN, whose slashes stay encoded."""
    client = bedrock(session)
    asked = {"modelId": ARN, "messages": [{"role": "user", "content": [{"text": "hi"}]}]}
    assert client.converse(**asked, inferenceConfig={"maxTokens": 4})["stopReason"] == "max_tokens"
    client.close()
