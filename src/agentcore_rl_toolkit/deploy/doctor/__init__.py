"""`doctor`: checks an agent's data, code, chat template and AWS setup before a run costs money.

In: an agent's path and what is known of its model and deployment. Out: a `Check` for each point: ok, failed with a fix,
or skipped with the reason. Uses a scripted model, so it needs no weights; leaves nothing behind, here or on AWS.

Imports `agent`, `client`, `deploy.aws`, `engine`, `gateway`, `rollout`, `runtime`.
"""
