"""mini-swe-agent: `mini` over chat completions through LiteLLM, with one tool, a shell."""

from __future__ import annotations

from real_harnesses.harness import ANSWER, MODEL, TASK, Harness, Place, call


def steps(place: Place) -> list[str]:
    commands = ["cat notes.txt", "cat todo.txt", "sed -i 's/bread/milk/' todo.txt", "wc -l todo.txt"]
    submit = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo '{ANSWER}'"
    return [call("bash", command=command) for command in [*commands, submit]]


def command(place: Place) -> list[str]:
    return [
        place.bin("mini"),
        "--yolo",
        "--exit-immediately",
        "--cost-limit",
        "0",
        "--model",
        f"openai/{MODEL}",
        "--task",
        TASK,
    ]


def env(place: Place) -> dict[str, str]:
    return {
        "OPENAI_API_BASE": place.session["base_url"],
        "OPENAI_API_KEY": "EMPTY",
        "MSWEA_COST_TRACKING": "ignore_errors",  # the policy has no price
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
    }


HARNESSES = [Harness("mini_swe_agent", ["mini-swe-agent==2.4.6", "mcp"], steps, command, env=env)]
