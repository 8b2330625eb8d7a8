"""Backends: each one converts rollouts to its trainer's types and connects them to that trainer's own hooks.

In: a run's settings, and groups of judged rollouts from `rollout/`. Out: the batches of TRL, verl, slime, rLLM, Tinker
or SageMaker, and the run's folder with its summary. A backend never changes a token, a mask or a logprob, and never
patches a trainer.

base.py      the protocol of a backend, its discovery, the checks before a run, and the plan
settings.py  the settings that backends share
launch.py    trainers that run as a separate program: start it, end it, write its summary
loop/        trainers that are libraries: the rollouts of each step, the run's folder, the report

One folder for each trainer.

Imports `agent`, `client`, `engine`, `gateway`, `rollout`, `runtime`, `store`, `studio`.
"""
