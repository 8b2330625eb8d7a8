"""LlamaIndex: a FunctionAgent, which streams chat completions, with three tools of its user's."""

from __future__ import annotations

import asyncio
import sys

from real_harnesses.harness import ANSWER, MODEL, Harness, Place, script
from real_harnesses.tools import tool_steps


def steps(place: Place) -> list[str]:
    """The two reads are one turn: parallel calls."""
    first, second, *rest = tool_steps()
    return [f"{first}\n{second}", *rest, ANSWER]


async def main(url: str, task: str) -> None:
    from llama_index.core.agent.workflow import FunctionAgent  # type: ignore[import-not-found]
    from llama_index.llms.openai_like import OpenAILike  # type: ignore[import-not-found]

    from real_harnesses.tools import edit_file, read_file, run_command

    model = OpenAILike(
        model=MODEL,
        api_base=url,
        api_key="EMPTY",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=32768,
    )
    agent = FunctionAgent(tools=[read_file, edit_file, run_command], llm=model, system_prompt="You edit files.")
    print(await agent.run(task))  # noqa: T201


PACKAGES = ["llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"]
HARNESSES = [Harness("llama_index", PACKAGES, steps, lambda place: script(place, "llama_index"))]

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
