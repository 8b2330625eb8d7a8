from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from agentcore_rl_toolkit.runtime.hosting.agent_files import (
    agent_files,
    copy_agent_folder,
    excluded_paths,
    fingerprint,
    pack_agent_folder,
    unpack_agent_folder,
)


def make(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


def files(folder: Path) -> list[str]:
    return sorted(os.path.relpath(path, folder) for path in agent_files(str(folder)))


def test_what_is_packed_and_copied_is_what_belongs_to_the_agent(tmp_path: Path) -> None:
    left = (".env", ".git/config", "data/.venv/x", "__pycache__/x.pyc", "runs/1")
    agent = make(tmp_path / "agent", "rl_app.py", "data/rows.txt", *left)
    (agent / "empty").mkdir()
    (agent / "link").symlink_to("data/rows.txt")
    (agent / "rl_app.py").chmod(0o755)
    for name in ("packed", "copied"):
        copy = tmp_path / name
        copy.mkdir()
        if name == "packed":
            unpack_agent_folder(pack_agent_folder(str(agent)), str(copy))
        else:
            copy_agent_folder(str(agent), str(copy))
        found = {str(path.relative_to(copy)) for path in copy.rglob("*")}
        assert found == {"rl_app.py", "data", "data/rows.txt", "empty", "link"}
        assert os.readlink(copy / "link") == "data/rows.txt"
        assert (copy / "rl_app.py").stat().st_mode & 0o777 == 0o755
    assert files(agent) == ["data/rows.txt", "link", "rl_app.py"]
    assert excluded_paths(str(agent)) == [".env", ".git/", "data/.venv/", "runs/"]


@pytest.mark.parametrize(
    "path",
    [
        ".env", ".ENV", ".env.local", ".envrc", ".aws/credentials", ".ssh/id_rsa", "id_ed25519", "id_rsa.pub",
        "tls/server.key", "cert.p12", ".netrc", ".pypirc", ".npmrc", ".git-credentials", ".bash_history",
        "runs/x/metrics.jsonl", "env/pyvenv.cfg", "conda/conda-meta/history", "node_modules/x/index.js", ".hg/store",
        "store/.new/1", "store/.announced/e/1",
    ],
)  # fmt: skip
def test_excluded(tmp_path: Path, path: str) -> None:
    agent = make(tmp_path, "rl_app.py", path)
    assert files(agent) == ["rl_app.py"]
    assert excluded_paths(str(agent)) != []


@pytest.mark.parametrize(
    "path",
    [".env.example", "environment.py", "keys.py", "ca.pem", "results/x.json", "run.py", "store/new/x", ".agents/a.md"],
)
def test_not_excluded(tmp_path: Path, path: str) -> None:
    agent = make(tmp_path, "rl_app.py", path)
    assert files(agent) == sorted(["rl_app.py", path])


def test_a_private_key_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    make(tmp_path, "rl_app.py")
    (tmp_path / "server.pem").write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\n")
    assert excluded_paths(str(tmp_path)) == ["server.pem"]


def test_a_training_run_is_excluded(tmp_path: Path) -> None:
    make(tmp_path, "rl_app.py", "my-run/metrics.jsonl", "my-run/rollouts/step-0.jsonl")
    assert excluded_paths(str(tmp_path)) == ["my-run/"]


def test_in_a_home_directory_nothing_hidden_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "rl_app.py", ".mozilla/cookies", "folder/.hidden")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files(tmp_path) == ["folder/.hidden", "rl_app.py"]


def test_sockets_pipes_and_unreadable_files_are_skipped(tmp_path: Path) -> None:
    agent = make(tmp_path / "agent", "rl_app.py", "gone")
    os.mkfifo(agent / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(agent / "socket"))
        (agent / "gone").unlink()
        (agent / "gone").symlink_to("nowhere")
        copy_agent_folder(str(agent), str(tmp_path / "copy"))
    assert sorted(os.listdir(tmp_path / "copy")) == ["gone", "rl_app.py"]


def test_the_fingerprint_is_that_of_code(tmp_path: Path) -> None:
    agent = make(tmp_path, "rl_app.py", "prompt.md", "schema.json", "rows.jsonl")
    loaded = fingerprint(str(agent))
    assert fingerprint(str(agent), loaded) == loaded
    make(agent, "report.json", "rows.jsonl", "outcomes.csv", "log.log", "runs/1.py", "results/.new/x.py")
    (agent / "rows.jsonl").write_text("more")
    assert fingerprint(str(agent), loaded) == loaded
    for path in ("rl_app.py", "prompt.md", "schema.json", "new.py", "settings.yaml", ".env"):
        before = fingerprint(str(agent), loaded)
        (agent / path).write_text(f"changed {path}")
        assert fingerprint(str(agent), loaded) != before, path
    (agent / "schema.json").unlink()
    assert str(agent / "schema.json") not in fingerprint(str(agent), loaded)
