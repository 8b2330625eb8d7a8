"""Claude Code, the command line tool: the entrypoint runs it in its own folder, and looks at the file."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()
# No telemetry, no updates; and it is root in its container, where nothing needs a permission.
SETTINGS = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1"}


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        todo = Path(folder) / "todo.txt"
        todo.write_text(payload.get("before", ""))
        flags = ["--dangerously-skip-permissions", *payload.get("flags", [])]
        if "instructions" in payload:  # in place of the tool's own prompt
            flags += ["--system-prompt", payload["instructions"]]
        command = ["claude", "--print", payload["prompt"], *flags]
        env = os.environ | SETTINGS | {"HOME": folder}
        done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        response, after = done.stdout or done.stderr, todo.read_text()
        if "after" not in payload:  # in production
            return {"response": response, "todo": after}
        return {"response": response, "rewards": float(after == payload["after"])}


if __name__ == "__main__":
    app.run()
