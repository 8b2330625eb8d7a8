"""SageMaker's Job Runtime: its reports under a session's URL, and the whole of it at the gateway's own address.

In: requests of a job's agent. Out: CompleteRollout and UpdateReward, kept with the session. It decides nothing about
tokens.

Imports `gateway.call`, `gateway.record`, `gateway.wire`.
"""
