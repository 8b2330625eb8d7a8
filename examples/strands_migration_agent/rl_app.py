"""The same agent as an RL environment: the model is the policy being trained, and the result has a reward."""

from dataclasses import asdict
from typing import Any

from migration.prompts import SYSTEM_PROMPT
from migration.task import Task
from migration.tools import tools
from migration.workspace import Workspace
from reward import Before, MigrationReward, check
from strands import Agent
from strands.models.openai import OpenAIModel
from strands.tools.executors import SequentialToolExecutor

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()
reward_fn = MigrationReward()


@app.rollout_entrypoint
def invoke_agent(payload: dict[str, Any]) -> dict[str, Any]:
    task = Task.read(payload)
    endpoint = app.model_endpoint(payload)
    model = OpenAIModel(
        client_args=endpoint.client_args,
        model_id=endpoint.model_id,
        params=endpoint.sampling_params,
    )
    with Workspace(task) as workspace:
        before = Before.of(workspace.root, task)
        agent = Agent(
            model=model,
            tools=tools(workspace),
            system_prompt=SYSTEM_PROMPT,
            tool_executor=SequentialToolExecutor(),
            callback_handler=None,
        )
        response = agent(task.prompt, limits={"turns": 60})
        if "_rollout" not in payload:
            return {"response": str(response), "patch": workspace.patch()}
        checks = check(workspace.root, before)
        return {"response": str(response), "checks": asdict(checks), "rewards": reward_fn(checks=checks)}


if __name__ == "__main__":
    app.run()
