"""No framework: a loop around the `openai` SDK's Chat Completions."""

import json
from typing import Any

from arithmetic import evaluate
from openai import OpenAI

from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.rewards import GSM8KReward

app = AgentCoreRLApp()
reward_fn = GSM8KReward()

EXPRESSION = {"type": "string", "description": "Numbers, + - * / and parentheses."}
CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {"type": "object", "properties": {"expression": EXPRESSION}, "required": ["expression"]},
    },
}


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    client = OpenAI()
    messages: list[Any] = [
        {"role": "system", "content": "Solve the math problem step by step."},
        {"role": "user", "content": payload["prompt"]},
    ]
    while True:
        completion = client.chat.completions.create(model="gpt-5-mini", messages=messages, tools=[CALCULATOR])
        message = completion.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            assert call.type == "function"
            result = evaluate(json.loads(call.function.arguments)["expression"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = message.content or ""
    if "answer" not in payload:  # in production
        return {"response": answer}
    return {"response": answer, "rewards": reward_fn(response_text=answer, ground_truth=payload["answer"])}


if __name__ == "__main__":
    app.run()
