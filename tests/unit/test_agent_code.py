from __future__ import annotations

import os
from pathlib import Path

from agentcore_rl_toolkit.runtime.agent_code import agent_files, pack_agent_folder, unpack_agent_folder


def test_what_is_packed_is_what_belongs_to_the_agent(tmp_path: Path) -> None:
    agent, copy = tmp_path / "agent", tmp_path / "copy"
    for path in ("rl_app.py", "data/rows.txt", ".env", ".git/config", "data/.venv/x", "__pycache__/x.pyc", "runs/1"):
        (agent / path).parent.mkdir(parents=True, exist_ok=True)
        (agent / path).write_text(path)
    (agent / "empty").mkdir()
    (agent / "link").symlink_to("data/rows.txt")
    (agent / "rl_app.py").chmod(0o755)
    copy.mkdir()
    unpack_agent_folder(pack_agent_folder(str(agent)), str(copy))
    found = {str(path.relative_to(copy)) for path in copy.rglob("*")}
    assert found == {"rl_app.py", "data", "data/rows.txt", "empty", "link"}
    assert os.readlink(copy / "link") == "data/rows.txt"
    assert (copy / "rl_app.py").stat().st_mode & 0o777 == 0o755
    assert sorted(os.path.relpath(p, agent) for p in agent_files(str(agent))) == ["data/rows.txt", "link", "rl_app.py"]
