"""The same agent as an RL environment: the model is the policy being trained, and the result has a reward."""

from typing import Any

from calculator import calculator
from question import Question
from reward import MathReward
from strands import Agent
from strands.models.openai import OpenAIModel

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()
reward_fn = MathReward()


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> str | dict[str, Any]:
    question = Question.read(payload)
    endpoint = app.model_endpoint(payload)
    model = OpenAIModel(
        client_args=endpoint.client_args,
        model_id=endpoint.model_id,
        params=endpoint.sampling_params,
    )
    agent = Agent(
        model=model,
        tools=[calculator],
        system_prompt="Solve the math problem step by step.",
        callback_handler=None,
    )
    response = agent(question.prompt)
    if "_rollout" not in payload:
        return str(response)
    rewards = reward_fn(response_text=str(response), ground_truth=payload["answer"])
    return {"response": str(response), "rewards": rewards}


if __name__ == "__main__":
    app.run()
