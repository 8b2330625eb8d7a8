# The agent of the second seed document ("Before vs After"), line for line but for the port at the end.
from agentcore_rl_toolkit import AgentCoreRLApp
from strands import Agent
from strands.models.openai import OpenAIModel
from strands_tools import calculator
from reward import MyReward

app = AgentCoreRLApp()
reward_fn = MyReward()

@app.rollout_entrypoint
def invoke_agent(payload: dict):
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
    )

    response = agent(payload["prompt"])

    rewards = reward_fn(
        response_text=response.message["content"][0]["text"],
        ground_truth=payload["answer"],
    )
    return {"rewards": rewards}

if __name__ == "__main__":
    import os
    app.run(port=int(os.environ["PORT"]))
