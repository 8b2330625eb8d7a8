"""Claude Code: Anthropic's Messages with system messages inside `messages`, and defaults filled into echoed calls."""

from __future__ import annotations

from real_harnesses.harness import ANSWER, TASK, Harness, Place, call


def steps(place: Place) -> list[str]:
    return [
        call("Read", file_path=place.path("notes.txt")),
        call("Read", file_path=place.path("todo.txt")),
        call("Edit", file_path=place.path("todo.txt"), old_string="bread", new_string="milk"),
        call("Bash", command="wc -l todo.txt", description="Count the lines"),
        ANSWER,
    ]


def command(place: Place) -> list[str]:
    return [place.bin("claude"), "--print", TASK, "--dangerously-skip-permissions"]


def env(place: Place) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": place.session["anthropic_base_url"],
        "ANTHROPIC_AUTH_TOKEN": "EMPTY",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # it refuses to skip permissions as root otherwise
    }


def search_steps(place: Place) -> list[str]:
    """Load a tool that is deferred, call it, then do the task."""
    return [call("ToolSearch", query="select:TaskList", max_results=3), call("TaskList"), *steps(place)]


def search_env(place: Place) -> dict[str, str]:
    return env(place) | {"ENABLE_TOOL_SEARCH": "true"}


PACKAGES = ["@anthropic-ai/claude-code@2.1.197"]
HARNESSES = [
    Harness("claude_code", PACKAGES, steps, command, npm=True, env=env, mark="Edit"),
    Harness("claude_code", PACKAGES, search_steps, command, npm=True, env=search_env, mark="ToolSearch"),
]
