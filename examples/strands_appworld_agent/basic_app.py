"""The agent in production: a model on Bedrock that writes code against the apps of its world, turn by turn."""

from typing import Any

from bedrock_agentcore.runtime import BedrockAgentCoreApp
from strands import Agent
from strands.models import BedrockModel
from strands.tools.executors import SequentialToolExecutor
from worlds import WorldRequest, open_world
from worlds.tool import SYSTEM_PROMPT, code_tool

app = BedrockAgentCoreApp()


@app.entrypoint
def invoke_agent(payload: dict[str, Any]) -> str:
    request = WorldRequest.read(payload)
    model = BedrockModel(model_id="us.anthropic.claude-sonnet-4-20250514-v1:0")
    with open_world(request) as world:
        agent = Agent(
            model=model,
            tools=[code_tool(world)],
            tool_executor=SequentialToolExecutor(),
            system_prompt=SYSTEM_PROMPT,
            callback_handler=None,
        )
        response = agent(request.prompt or world.instruction, limits={"turns": 50})
        return str(response)


if __name__ == "__main__":
    app.run()
