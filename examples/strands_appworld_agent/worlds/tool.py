"""The agent's one tool: running code in its world."""

from __future__ import annotations

from typing import Any

from strands import ToolContext, tool

from .base import World

SYSTEM_PROMPT = """\
You act for your supervisor by writing Python code, a small step at a time. The code runs with `run_code`; variables
stay between calls, and only what you print is shown to you. `apis.<app>.<api>(...)` calls an API, with keyword
arguments only.

Find out what there is before you use it:
apis.api_docs.show_app_descriptions()
apis.api_docs.show_api_descriptions(app_name=...)
apis.api_docs.show_api_doc(app_name=..., api_name=...)

Your supervisor's name, accounts and passwords are in apis.supervisor. Lists come in pages: read all of them. Do only
what is asked. When you are done, call apis.supervisor.complete_task(), with answer=... if and only if the task asks for
an answer."""


def code_tool(world: World) -> Any:
    """A tool that runs code in `world`, and ends the agent's turns once the task is complete."""

    @tool(context=True)
    def run_code(code: str, tool_context: ToolContext) -> str:
        """Run Python code in the world.

        Args:
            code: What to run; it can call apis.<app>.<api>(...).
        """
        output = world.execute(code)
        if world.completed():
            tool_context.agent.cancel(after_current_tools=True)
        return output

    return run_code
