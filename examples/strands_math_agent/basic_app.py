"""The math agent in production: a model on Bedrock, and a calculator."""

from typing import Any

from bedrock_agentcore.runtime import BedrockAgentCoreApp
from calculator import calculator
from question import Question
from strands import Agent
from strands.models import BedrockModel

app = BedrockAgentCoreApp()


@app.entrypoint
def invoke_agent(payload: dict[str, Any]) -> str:
    question = Question.read(payload)
    model = BedrockModel(model_id="us.anthropic.claude-sonnet-4-20250514-v1:0")
    agent = Agent(
        model=model,
        tools=[calculator],
        system_prompt="Solve the math problem step by step.",
        callback_handler=None,
    )
    response = agent(question.prompt)
    return str(response)


if __name__ == "__main__":
    app.run()
