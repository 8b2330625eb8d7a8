"""Qwen Code: chat completions."""

from __future__ import annotations

from real_harnesses.harness import ANSWER, MODEL, TASK, Harness, Place, call


def steps(place: Place) -> list[str]:
    return [
        call("read_file", file_path=place.path("notes.txt")),
        call("read_file", file_path=place.path("todo.txt")),
        call("edit", file_path=place.path("todo.txt"), old_string="buy bread", new_string="buy milk"),
        call("run_shell_command", command="wc -l todo.txt", is_background=False),
        ANSWER,
    ]


def command(place: Place) -> list[str]:
    return [place.bin("qwen"), "--yolo", "--auth-type", "openai", "--model", MODEL, "--prompt", TASK]


def env(place: Place) -> dict[str, str]:
    return {"OPENAI_BASE_URL": place.session["base_url"], "OPENAI_API_KEY": "EMPTY", "OPENAI_MODEL": MODEL}


HARNESSES = [
    Harness("qwen_code", ["@qwen-code/qwen-code@0.15.10"], steps, command, npm=True, env=env, mark="read_file")
]
