"""The same agent as an RL environment: another app class, another decorator, and a reward in the result."""

import os
from typing import Any

from agentcore_rl_toolkit import AgentCoreRLApp
from agentcore_rl_toolkit.rewards import ExactMatch

app = AgentCoreRLApp()
reward_fn = ExactMatch()


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    reply = str(payload["prompt"])
    rewards = reward_fn(response_text=reply, ground_truth=payload.get("answer", reply))
    return {"response": reply, "rewards": rewards}


if __name__ == "__main__":
    app.run(port=int(os.environ.get("PORT", "8080")))
