"""The office agent in production: a model on Bedrock, and six apps on the files that came with the request."""

from typing import Any

from bedrock_agentcore.runtime import BedrockAgentCoreApp
from office.payload import OfficeRequest
from office.tools import office_tools
from office.workspace import Workspace
from strands import Agent
from strands.models import BedrockModel
from strands.tools.executors import SequentialToolExecutor

app = BedrockAgentCoreApp()


@app.entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    request = OfficeRequest.read(payload)
    model = BedrockModel(model_id="us.anthropic.claude-sonnet-4-20250514-v1:0")
    with Workspace(request.files) as workspace:
        agent = Agent(
            model=model,
            tools=office_tools(workspace),
            tool_executor=SequentialToolExecutor(),
            system_prompt="Do the office work you are asked for with your tools, then say briefly what you did.",
            callback_handler=None,
        )
        response = agent(request.text, limits={"turns": 40})
        return {"response": str(response), "files": workspace.contents()}


if __name__ == "__main__":
    app.run()
