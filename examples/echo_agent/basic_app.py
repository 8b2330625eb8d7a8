"""The smallest production agent: it says back what it was told."""

from typing import Any

from bedrock_agentcore.runtime import BedrockAgentCoreApp

app = BedrockAgentCoreApp()


@app.entrypoint
def invoke_agent(payload: dict[str, Any]) -> str:
    return str(payload["prompt"])


if __name__ == "__main__":
    app.run()
