"""OpenHands' SDK: its default agent over chat completions through LiteLLM."""

from __future__ import annotations

import os
import sys

from real_harnesses.harness import ANSWER, MODEL, Harness, Place, call, script


def steps(place: Place) -> list[str]:
    edit = {"old_str": "buy bread", "new_str": "buy milk"}
    return [
        call("file_editor", command="view", path=place.path("notes.txt")),
        call("file_editor", command="view", path=place.path("todo.txt")),
        call("file_editor", command="str_replace", path=place.path("todo.txt"), **edit),
        call("terminal", command="wc -l todo.txt"),
        call("finish", message=ANSWER),
    ]


def env(place: Place) -> dict[str, str]:
    return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENHANDS_SUPPRESS_BANNER": "1"}  # no prices from the network


def main(url: str, task: str) -> None:
    from openhands.sdk import LLM, Conversation  # type: ignore[import-not-found]
    from openhands.tools.preset.default import get_default_agent  # type: ignore[import-not-found]

    llm = LLM(model=f"openai/{MODEL}", base_url=url, api_key="EMPTY")
    conversation = Conversation(agent=get_default_agent(llm=llm, cli_mode=True), workspace=os.getcwd())
    conversation.send_message(task)
    conversation.run()


PACKAGES = ["openhands-sdk==1.58.0", "openhands-tools==1.58.0"]
HARNESSES = [
    Harness(
        "openhands",
        PACKAGES,
        steps,
        lambda place: script(place, "openhands"),
        python=(3, 12),
        env=env,
        mark="file_editor",
    )
]

if __name__ == "__main__":
    main(*sys.argv[1:])
