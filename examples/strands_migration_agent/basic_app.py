"""The migration agent in production: a model on Bedrock, and tools in a workspace of the session's own."""

from typing import Any

from bedrock_agentcore.runtime import BedrockAgentCoreApp
from migration.prompts import SYSTEM_PROMPT
from migration.task import Task
from migration.tools import tools
from migration.workspace import Workspace
from strands import Agent
from strands.models import BedrockModel
from strands.tools.executors import SequentialToolExecutor

app = BedrockAgentCoreApp()


@app.entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    task = Task.read(payload)
    model = BedrockModel(model_id="us.anthropic.claude-sonnet-4-20250514-v1:0")
    with Workspace(task) as workspace:
        agent = Agent(
            model=model,
            tools=tools(workspace),
            system_prompt=SYSTEM_PROMPT,
            tool_executor=SequentialToolExecutor(),
            callback_handler=None,
        )
        response = agent(task.prompt, limits={"turns": 60})
        return {"response": str(response), "patch": workspace.patch()}


if __name__ == "__main__":
    app.run()
