"""Codex, the command line tool: the entrypoint runs it in its own folder, and looks at the file."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()
PROVIDER = '{{name="gateway", base_url="{}", env_key="OPENAI_API_KEY", wire_api="responses"}}'


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    endpoint = app.model_endpoint(payload)
    provider = PROVIDER.format(endpoint.base_url)
    settings = [f'model="{endpoint.model_id}"', 'model_provider="gateway"', f"model_providers.gateway={provider}"]
    with tempfile.TemporaryDirectory() as folder:
        todo = Path(folder) / "todo.txt"
        todo.write_text(payload.get("before", ""))
        if "instructions" in payload:  # in place of the tool's own prompt
            instructions = Path(folder) / ".instructions.md"
            instructions.write_text(payload["instructions"])
            settings.append(f'model_instructions_file="{instructions}"')
        flags = [flag for setting in settings for flag in ("-c", setting)]
        allowed = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        command = ["codex", "exec", *allowed, *flags, *payload.get("flags", []), payload["prompt"]]
        env = os.environ | {"HOME": folder, "OPENAI_API_KEY": endpoint.api_key}
        done = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        response, after = done.stdout or done.stderr, todo.read_text()
        if "after" not in payload:  # in production
            return {"response": response, "todo": after}
        return {"response": response, "rewards": float(after == payload["after"])}


if __name__ == "__main__":
    app.run()
