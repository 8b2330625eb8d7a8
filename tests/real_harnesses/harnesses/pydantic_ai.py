"""pydantic-ai: an Agent over chat completions, with three tools of its user's."""

from __future__ import annotations

import sys

from real_harnesses.harness import ANSWER, MODEL, Harness, Place, script
from real_harnesses.tools import tool_steps


def steps(place: Place) -> list[str]:
    return [*tool_steps(), ANSWER]


def main(url: str, task: str) -> None:
    from pydantic_ai import Agent  # type: ignore[import-not-found]
    from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
    from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]

    from real_harnesses.tools import edit_file, read_file, run_command

    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=url, api_key="EMPTY"))
    agent = Agent(model, instructions="You edit files.", tools=[read_file, edit_file, run_command])
    print(agent.run_sync(task).output)  # noqa: T201


HARNESSES = [
    Harness("pydantic_ai", ["pydantic-ai-slim[openai]==2.66.0"], steps, lambda place: script(place, "pydantic_ai"))
]

if __name__ == "__main__":
    main(*sys.argv[1:])
