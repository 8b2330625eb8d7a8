"""opencode: chat completions through the Vercel AI SDK, and a side call for the session's title."""

from __future__ import annotations

import json

from real_harnesses.harness import ANSWER, MODEL, TASK, Harness, Place, call


def steps(place: Place) -> list[str]:
    return [
        call("read", filePath=place.path("notes.txt")),
        call("read", filePath=place.path("todo.txt")),
        call("edit", filePath=place.path("todo.txt"), oldString="bread", newString="milk"),
        call("bash", command="wc -l todo.txt", description="Count the lines"),
        ANSWER,
    ]


def command(place: Place) -> list[str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": place.session["base_url"], "apiKey": "EMPTY"},
        "models": {MODEL: {"name": MODEL}},
    }
    settings = {
        "provider": {"gateway": provider},
        "model": f"gateway/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
    }
    (place.work / "opencode.json").write_text(json.dumps(settings))
    return [place.bin("opencode"), "run", TASK]


HARNESSES = [
    Harness(
        "opencode",
        ["opencode-ai@1.18.33"],
        steps,
        command,
        npm=True,
        mark="filePath",
        rows=2,
        why="a second call asks for the session's title",
    )
]
