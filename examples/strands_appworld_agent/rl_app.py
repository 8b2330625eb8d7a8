"""The same agent as an RL environment: the model is the policy being trained, and the world's evaluator judges it."""

from typing import Any

from reward import WorldReward
from strands import Agent
from strands.models.openai import OpenAIModel
from strands.tools.executors import SequentialToolExecutor
from worlds import WorldRequest, open_world
from worlds.tool import SYSTEM_PROMPT, code_tool

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()
reward_fn = WorldReward()


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> str | dict[str, Any]:
    request = WorldRequest.read(payload)
    endpoint = app.model_endpoint(payload)
    model = OpenAIModel(
        client_args=endpoint.client_args,
        model_id=endpoint.model_id,
        params=endpoint.sampling_params,
    )
    with open_world(request) as world:
        agent = Agent(
            model=model,
            tools=[code_tool(world)],
            tool_executor=SequentialToolExecutor(),
            system_prompt=SYSTEM_PROMPT,
            callback_handler=None,
        )
        response = agent(request.prompt or world.instruction, limits={"turns": 50})
        if "_rollout" not in payload:
            return str(response)
        evaluation = world.evaluate()
        return {
            "response": str(response),
            "rewards": reward_fn(evaluation=evaluation),
            "passed": list(evaluation.passed),
            "failed": list(evaluation.failed),
        }


if __name__ == "__main__":
    app.run()
