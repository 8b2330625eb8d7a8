"""From an agent's folder to the ARN of a runtime on AWS, and back.

In: a folder with an agent and a Dockerfile, settings, AWS credentials. Out: an image in ECR, a role, a bucket, a
runtime, and the ARN that trainers take. `state.py` records every resource in the agent's folder as soon as it exists;
`destroy` deletes those resources and refuses to touch any other. `doctor/` checks an agent before it is deployed.

Refuses to run rollouts in its own way: the trial rollout and the doctor go through `RolloutClient`.

Imports `agent`, `client`, `engine`, `rollout`, `runtime`.
"""
