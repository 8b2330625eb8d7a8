"""The OpenAI Agents SDK: its `Runner` calls Responses."""

from typing import Any

from agents import Agent, Runner, function_tool, set_tracing_disabled
from arithmetic import evaluate

from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.rewards import GSM8KReward

app = AgentCoreRLApp()
reward_fn = GSM8KReward()
set_tracing_disabled(True)  # traces would go to OpenAI, whoever the model is


@function_tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: Numbers, + - * / and parentheses.
    """
    return evaluate(expression)


@app.rollout_entrypoint
async def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    agent = Agent(
        name="mathematician",
        model="gpt-5-mini",
        instructions="Solve the math problem step by step.",
        tools=[calculator],
    )
    answer = (await Runner.run(agent, payload["prompt"])).final_output
    if "answer" not in payload:  # in production
        return {"response": answer}
    return {"response": answer, "rewards": reward_fn(response_text=answer, ground_truth=payload["answer"])}


if __name__ == "__main__":
    app.run()
