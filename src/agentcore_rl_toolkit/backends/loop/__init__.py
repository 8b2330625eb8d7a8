"""The training loop of trainers that are libraries or services (TRL, Tinker, SageMaker): each step's rollouts, the
run's folder, the report.

In: an engine, a tokenizer, and the trainer's own `train` and `save`. Out: groups for each step, evaluations,
checkpoints to resume from, `metrics.jsonl` and `summary.json`. It never looks at a trainer's types.

Imports `client`, `engine`, `gateway`, `rollout`, `studio`.
"""
