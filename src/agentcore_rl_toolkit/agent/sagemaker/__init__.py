"""Rollouts that a SageMaker job (multi-turn RL) requests: reading the request, and reporting how the rollout ended.

In: an invoke with `metadata` of a job. Out: CompleteRollout and UpdateReward, once each, for one trajectory. It never
chooses the job or the model, and sends credentials to SageMaker only.

Imports `store`.
"""
