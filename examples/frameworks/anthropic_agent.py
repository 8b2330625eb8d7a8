"""No framework: a loop around the `anthropic` SDK's Messages."""

from typing import Any

from anthropic import Anthropic
from arithmetic import evaluate

from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.rewards import GSM8KReward

app = AgentCoreRLApp()
reward_fn = GSM8KReward()

EXPRESSION = {"type": "string", "description": "Numbers, + - * / and parentheses."}
CALCULATOR: Any = {
    "name": "calculator",
    "description": "Evaluate an arithmetic expression.",
    "input_schema": {"type": "object", "properties": {"expression": EXPRESSION}, "required": ["expression"]},
}


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    client = Anthropic()
    messages: list[Any] = [{"role": "user", "content": payload["prompt"]}]
    while True:
        message = client.messages.create(
            model="claude-sonnet-4-5",
            max_tokens=1024,
            system="Solve the math problem step by step.",
            messages=messages,
            tools=[CALCULATOR],
        )
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": evaluate(str(call.input["expression"]))}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    answer = "".join(block.text for block in message.content if block.type == "text")
    if "answer" not in payload:  # in production
        return {"response": answer}
    return {"response": answer, "rewards": reward_fn(response_text=answer, ground_truth=payload["answer"])}


if __name__ == "__main__":
    app.run()
