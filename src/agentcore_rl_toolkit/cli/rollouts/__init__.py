"""Verbs that run rollouts, train on them or read them: rollout, eval, train, sft, rescore, results.

In: flags, an agent, data rows. Out: outcomes as JSON lines or a table, and the folder of a run.

Imports `agent`, `backends`, `cli.terminal`, `client`, `deploy`, `engine`, `gateway`, `rollout`, `runtime`, `store`.
"""
