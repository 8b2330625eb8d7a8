"""An image's recipe carried out without a container engine, and the process that its CMD starts.

Understands what our own Dockerfiles say: FROM, ENV, WORKDIR, COPY, RUN pip install, USER, EXPOSE, CMD. The image's root
is a folder with a virtual environment, which finds this suite's packages, so that nothing is fetched.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .agent import SESSION_HEADER, AgentProcess
from .process import clean_env, free_port, server

# What `docker run --publish` does: the container's 8080 is another port outside.
PUBLISH = """\
import os, socket, sys
sys.modules["uvloop"] = None
bind = socket.socket.bind
def published(self, address):
    if address[1] == 8080:
        address = (address[0], int(os.environ["PUBLISHED"]), *address[2:])
    bind(self, address)
socket.socket.bind = published
"""


@dataclass
class Image:
    """A built image: its root, and how it is started."""

    root: Path
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    user: str = "0"
    ports: list[int] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / self.workdir.strip("/")

    @contextmanager
    def running(self, log: Path, **env: str) -> Iterator[AgentProcess]:
        port = free_port()
        given = clean_env() | self.env | {"PATH": f"{self.root}/venv/bin:/usr/bin:/bin", "PUBLISHED": str(port)} | env
        command = [shutil.which(self.command[0], path=given["PATH"]) or "", *self.command[1:]]
        here = os.getcwd()
        os.chdir(self.folder)
        try:
            with server(command, port=port, log=log, env=given, ready="/ping") as process:
                os.chdir(here)
                yield AgentProcess(port, process, log)
        finally:
            os.chdir(here)


def build(context: Path, root: Path) -> Image:
    """Carry out the Dockerfile of `context`."""
    image = Image(root)
    ignored = [line.removeprefix("**/") for line in (context / ".dockerignore").read_text().split()]
    for line in (context / "Dockerfile").read_text().splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            assert rest.startswith("public.ecr.aws/docker/library/python:3")
            _make_venv(root / "venv")
        elif word == "ENV":
            image.env |= dict(part.split("=", 1) for part in shlex.split(rest))
        elif word == "WORKDIR":
            image.workdir = rest
            image.folder.mkdir(parents=True)
        elif word == "COPY":
            *sources, target = shlex.split(rest)
            _copy(context, sources, image.folder / target, ignored)
        elif word == "RUN":
            _run(image, shlex.split(rest))
        elif word == "USER":
            image.user = rest
        elif word == "EXPOSE":
            image.ports.append(int(rest))
        elif word == "CMD":
            image.command = json.loads(rest)
        else:
            assert not word or word == "#", line
    return image


def _make_venv(folder: Path) -> None:
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    linked = folder / "linked"
    linked.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "agentcore_rl_toolkit" not in path.name:  # that one comes from the wheel beside the agent
            (linked / path.name).symlink_to(path)
    (packages / "suite.pth").write_text(f"{linked}\n")
    (packages / "sitecustomize.py").write_text(PUBLISH)


def _copy(context: Path, sources: list[str], target: Path, ignored: list[str]) -> None:
    """As COPY: a pattern may match nothing as long as another source does, and a folder's content is copied."""
    found = [path for source in sources for path in sorted(context.glob(source) if source != "." else [context])]
    assert found, sources
    target.mkdir(parents=True, exist_ok=True)
    for path in found:
        if path.is_dir():
            skip = shutil.ignore_patterns(*ignored)
            shutil.copytree(path, target, ignore=skip, dirs_exist_ok=True)
        elif not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
            shutil.copy(path, target)


def _run(image: Image, words: list[str]) -> None:
    assert words[:2] == ["pip", "install"], words
    env = clean_env() | image.env | {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PYTHONNOUSERSITE": "1"}
    command = [f"{image.root}/venv/bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet", *words[1:]]
    done = subprocess.run(command, cwd=image.folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def data_plane(agent: AgentProcess, status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """AgentCore Runtime's wire in front of a container, for any ARN; gives its URL, and the paths it is asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(self.path)
            if status != 200:
                self._send(
                    status, json.dumps({"message": "no"}).encode(), {"x-amzn-ErrorType": "AccessDeniedException"}
                )
            elif self.path.endswith("/invocations"):
                connection = HTTPConnection("127.0.0.1", agent.port, timeout=30)
                session = {SESSION_HEADER: self.headers[SESSION_HEADER]}
                connection.request("POST", "/invocations", body, {"Content-Type": "application/json"} | session)
                answer = connection.getresponse()
                self._send(answer.status, answer.read(), session)
                connection.close()
            else:
                self._send(200, b"{}", {})

        def _send(self, code: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(code)
            for name, value in {
                "content-type": "application/json",
                "content-length": str(len(data)),
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}", asked
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join(10)


class Refusing(BaseHTTPRequestHandler):
    """A service of AWS that allows nothing, in each of the forms in which they say so."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not allowed</Message></Error></ErrorResponse>"
        if "X-Amz-Target" in self.headers:
            body = '{"__type": "AccessDeniedException", "message": "not allowed"}'
        self.send_response(403 if self.command == "HEAD" else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

    def log_message(self, *args: object) -> None:
        pass


ENGINE = """\
#!{python} -S
import json, os, sys, urllib.request
here = os.path.dirname(os.path.abspath(__file__))
args = sys.argv[1:]
said = sys.stdin.read() if "--password-stdin" in args else ""
with open(os.path.join(here, "calls.jsonl"), "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *args, *([said] if said else [])]) + "\\n")
if args == ["info"] and os.path.exists(os.path.join(here, "down")):
    sys.exit(1)
if args[0] == "build":
    assert os.environ["BUILDX_NO_DEFAULT_ATTESTATIONS"] == "1"
    sys.exit(int(os.environ.get("BUILD_EXIT", "0")))
if args[:2] == ["image", "inspect"]:
    print(os.environ.get("BUILT_FOR", "linux/arm64"))
if args[0] == "push" and "AWS_ENDPOINT_URL_ECR" in os.environ:
    repository, _, tag = args[1].partition("/")[2].partition(":")
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps({{"mediaType": kind, "config": {{"digest": tag}}}})
    body = {{"repositoryName": repository, "imageTag": tag, "imageManifest": manifest}}
    headers = {{
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": "AmazonEC2ContainerRegistry_V20150921.PutImage",
        "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-west-2/ecr/aws4_request, Signature=x",
    }}
    request = urllib.request.Request(os.environ["AWS_ENDPOINT_URL_ECR"], json.dumps(body).encode(), headers)
    urllib.request.urlopen(request).read()
"""
"""A container engine that builds nothing, writes down what it was told, and lets a pushed image appear in ECR."""


def write_engine(folder: Path, name: str) -> Path:
    """Put one on a PATH; gives the file of its calls."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(ENGINE.format(python=sys.executable))
    program.chmod(0o755)
    return folder / "calls.jsonl"
