"""The same agent as an RL environment: the model is the policy being trained, and the files it leaves are checked."""

from typing import Any

from office.evaluation import evaluate
from office.payload import OfficeRequest
from office.tools import office_tools
from office.workspace import Workspace
from reward import OfficeReward
from strands import Agent
from strands.models.openai import OpenAIModel
from strands.tools.executors import SequentialToolExecutor

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()
reward_fn = OfficeReward()


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    request = OfficeRequest.read(payload)
    endpoint = app.model_endpoint(payload)
    model = OpenAIModel(
        client_args=endpoint.client_args,
        model_id=endpoint.model_id,
        params=endpoint.sampling_params,
    )
    with Workspace(request.files) as workspace:
        agent = Agent(
            model=model,
            tools=office_tools(workspace),
            tool_executor=SequentialToolExecutor(),
            system_prompt="Do the office work you are asked for with your tools, then say briefly what you did.",
            callback_handler=None,
        )
        response = agent(request.text, limits={"turns": 40})
        if "_rollout" not in payload:
            return {"response": str(response), "files": workspace.contents()}
        outcomes = evaluate(request, workspace)
        return {"response": str(response), "rewards": reward_fn(outcomes=outcomes), "checks": outcomes}


if __name__ == "__main__":
    app.run()
