"""The verbs of `agentcore-rl sagemaker`."""
