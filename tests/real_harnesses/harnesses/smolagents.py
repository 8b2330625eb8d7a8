"""smolagents: a ToolCallingAgent over chat completions, with four tools of its user's."""

from __future__ import annotations

import sys

from real_harnesses.harness import ANSWER, MODEL, Harness, Place, call, script


def steps(place: Place) -> list[str]:
    return [
        call("read_file", path="notes.txt"),
        call("read_file", path="todo.txt"),
        call("edit_file", path="todo.txt", old="buy bread", new="buy milk"),
        call("run_command", command="wc -l todo.txt"),
        call("final_answer", answer=ANSWER),
    ]


def main(url: str, task: str) -> None:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool  # type: ignore[import-not-found]

    from real_harnesses.tools import edit_file, read_file, run_command

    model = OpenAIServerModel(MODEL, api_base=url, api_key="EMPTY")
    agent = ToolCallingAgent(tools=[tool(read_file), tool(edit_file), tool(run_command)], model=model)
    print(agent.run(task))  # noqa: T201


HARNESSES = [Harness("smolagents", ["smolagents[openai]==1.26.0"], steps, lambda place: script(place, "smolagents"))]

if __name__ == "__main__":
    main(*sys.argv[1:])
