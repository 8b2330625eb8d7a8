"""Codex: OpenAI's Responses with namespaces, custom tools, a web search, and tools that come as items."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from real_harnesses.harness import ANSWER, TASK, Harness, Place, call

_PATCH = "*** Begin Patch\n*** Update File: todo.txt\n@@\n-buy bread\n+buy milk\n*** End Patch"


def shell_steps(place: Place) -> list[str]:
    """A model whose name Codex doesn't know has a shell, which knows `apply_patch`."""
    edit = f"apply_patch <<'EOF'\n{_PATCH}\nEOF"
    commands = ["cat notes.txt", "cat todo.txt", edit, "wc -l todo.txt"]
    return [*(call("exec_command", cmd=command) for command in commands), ANSWER]


def custom_steps(place: Place) -> list[str]:
    """The edit is a call of a custom tool."""
    read = [call("exec_command", cmd=f"cat {name}") for name in ("notes.txt", "todo.txt")]
    return [*read, call("apply_patch", input=_PATCH), call("exec_command", cmd="wc -l todo.txt"), ANSWER]


def code_steps(place: Place) -> list[str]:
    """All is JavaScript in one custom tool of a namespace, brought by an item of `additional_tools`."""

    def code(name: str, argument: object) -> str:
        return call("exec", input=f"text(await tools.{name}({json.dumps(argument)}));")

    read = [code("exec_command", {"cmd": f"cat {name}"}) for name in ("notes.txt", "todo.txt")]
    return [*read, code("apply_patch", _PATCH), code("exec_command", {"cmd": "wc -l todo.txt"}), ANSWER]


def mcp_steps(place: Place) -> list[str]:
    """A tool of an MCP server is searched for, and called by its namespace; its result has a picture."""
    return [call("tool_search", query="add a note"), call("mcp__notes__add_note", text="milk"), *custom_steps(place)]


def mcp_command(place: Place) -> list[str]:
    server = Path(__file__).parents[1] / "mcp_notes.py"
    known = f'{{command="{sys.executable}", args=["{server}"], default_tools_approval_mode="approve"}}'
    program, verb, *rest = command(place, model="gpt-5.5")
    return [program, verb, "-c", f"mcp_servers.notes={known}", *rest]


def command(place: Place, model: str) -> list[str]:
    provider = (
        f'{{name="gateway", base_url="{place.session["base_url"]}", env_key="GATEWAY_KEY", wire_api="responses"}}'
    )
    settings = [f'model="{model}"', 'model_provider="gateway"', f"model_providers.gateway={provider}"]
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return [place.bin("codex"), "exec", *flags, *(part for setting in settings for part in ("-c", setting)), TASK]


def env(place: Place) -> dict[str, str]:
    return {"GATEWAY_KEY": "EMPTY"}


PACKAGES = ["@openai/codex@0.169.0"]
HARNESSES = [
    Harness("codex", PACKAGES, steps, partial(command, model=model), npm=True, env=env)
    for model, steps in (("policy", shell_steps), ("gpt-5.5", custom_steps), ("gpt-5.6-sol", code_steps))
]
HARNESSES.append(Harness("codex", PACKAGES, mcp_steps, mcp_command, npm=True, env=env))
