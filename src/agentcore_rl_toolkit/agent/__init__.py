"""What runs in the agent's container: the app, its rollouts in the background, their results and rewards.

In: an invoke, which is a production request or a rollout. Out: an answer, and one result in the store per rollout. It
never samples and never trains, and needs only `bedrock-agentcore` and `boto3`.

Imports `store`.
"""
