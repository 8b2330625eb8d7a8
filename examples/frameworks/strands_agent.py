"""Strands, on Bedrock: `BedrockModel` calls ConverseStream."""

from typing import Any

from arithmetic import evaluate
from strands import Agent, tool
from strands.models import BedrockModel

from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.rewards import GSM8KReward

app = AgentCoreRLApp()
reward_fn = GSM8KReward()


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers, + - * / and parentheses.
    """
    return evaluate(expression)


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    agent = Agent(
        model=BedrockModel(model_id="us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        tools=[calculator],
        system_prompt="Solve the math problem step by step.",
        callback_handler=None,
    )
    answer = str(agent(payload["prompt"]))
    if "answer" not in payload:  # in production
        return {"response": answer}
    return {"response": answer, "rewards": reward_fn(response_text=answer, ground_truth=payload["answer"])}


if __name__ == "__main__":
    app.run()
