"""Gemini CLI: Google's wire, with function calls and thought signatures."""

from __future__ import annotations

import json

from real_harnesses.harness import ANSWER, MODEL, TASK, Harness, Place, call


def steps(place: Place) -> list[str]:
    edit = {"old_string": "buy bread", "new_string": "buy milk", "instruction": "Buy milk instead of bread."}
    return [
        call("read_file", file_path="notes.txt"),
        call("read_file", file_path="todo.txt"),
        call("replace", file_path="todo.txt", **edit),
        call("run_shell_command", command="wc -l todo.txt", description="Count the lines"),
        ANSWER,
    ]


def command(place: Place) -> list[str]:
    folder = place.home / ".gemini"
    folder.mkdir()
    settings = {
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    return [place.bin("gemini"), "--yolo", "--skip-trust", "--model", MODEL, "--prompt", TASK]


def env(place: Place) -> dict[str, str]:
    return {
        "GEMINI_API_KEY": "EMPTY",
        "GOOGLE_GEMINI_BASE_URL": place.session["google_base_url"],
        "GEMINI_TELEMETRY_ENABLED": "false",
    }


HARNESSES = [Harness("gemini_cli", ["@google/gemini-cli@0.61.0"], steps, command, npm=True, env=env, mark="read_file")]
