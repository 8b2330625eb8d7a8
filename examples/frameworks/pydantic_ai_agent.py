"""Pydantic AI: `OpenAIResponsesModel`, which `openai:gpt-5-mini` is short for, calls Responses."""

from typing import Any

from arithmetic import evaluate
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel  # at import, so that sessions needn't

from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.rewards import GSM8KReward

app = AgentCoreRLApp()
reward_fn = GSM8KReward()


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers, + - * / and parentheses.
    """
    return evaluate(expression)


@app.rollout_entrypoint
async def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    agent = Agent(
        OpenAIResponsesModel("gpt-5-mini"),
        instructions="Solve the math problem step by step.",
        tools=[calculator],
    )
    answer = (await agent.run(payload["prompt"])).output
    if "answer" not in payload:  # in production
        return {"response": answer}
    return {"response": answer, "rewards": reward_fn(response_text=answer, ground_truth=payload["answer"])}


if __name__ == "__main__":
    app.run()
