"""Engines on services that train as well: Tinker, and SageMaker's training sessions.

In: token ids and sampling settings. Out: whole replies, with the version of the weights that sampled them. They don't
train; `backends/tinker` and `backends/sagemaker/session` do.

Imports `engine.remote`.
"""
