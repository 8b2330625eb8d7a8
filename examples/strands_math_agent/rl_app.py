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
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    question = Question.read(payload)
    cfg = payload["_rollout"]
    model = OpenAIModel(
        client_args={"api_key": "EMPTY", "base_url": cfg["base_url"]},
        model_id=cfg["model_id"],
        params=cfg.get("sampling_params", {}),
    )
    agent = Agent(
        model=model,
        tools=[calculator],
        system_prompt="Solve the math problem step by step.",
        callback_handler=None,
    )
    response = agent(question.prompt)
    rewards = reward_fn(response_text=str(response), ground_truth=payload["answer"])
    return {"response": str(response), "rewards": rewards}


if __name__ == "__main__":
    app.run()
