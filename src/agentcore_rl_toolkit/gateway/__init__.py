"""The gateway: agents call it as if it were their model's API; it records what the policy sampled, exactly.

In: model calls of OpenAI, Anthropic, Bedrock or Google, and an engine. Out: replies in the same API, and trajectories
in which every sampled token is trained once or masked with a reason. It refuses calls without a session's key, and
never renders again what the model sampled. `base.py` is the interface that rollouts know, wherever the gateway runs.

Imports `engine`.
"""
