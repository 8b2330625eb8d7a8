"""What runs in the agent's container: the app, one rollout in the background, its result and its reward.

In: an invoke, a production request or a rollout. Out: one result in the store for each rollout.
It never samples, never trains, and needs nothing but `bedrock-agentcore` and `boto3`.
Imports: `store`, `common`, and the top-level modules.
"""
