# The agent of the first seed document, line for line, with what it leaves to the user filled in below the first blank.
from agentcore_rl_toolkit import StrandsAgentCoreRLApp, StrandsRolloutCollector
from strands import Agent

from reward import GSM8KReward
from strands_tools import calculator

app = StrandsAgentCoreRLApp()
model = app.create_openai_compatible_model()
rollout_collector = StrandsRolloutCollector()
agent = Agent(model=model, system_prompt="...", tools=[calculator], hooks=[rollout_collector])
reward_fn = GSM8KReward() # user-defined reward function

@app.rollout_entrypoint
async def invoke_agent(payload):
    response = await agent.invoke_async(payload.get("prompt"))
    rollout_data = rollout_collector.get_rollout_data()
    rewards = reward_fn(response_text=response.message["content"][0]["text"], ground_truth=payload.get("answer"))
    return {"rollout_data": rollout_data, "rewards": rewards}

if __name__ == "__main__":
    import os
    app.run(port=int(os.environ["PORT"]))
