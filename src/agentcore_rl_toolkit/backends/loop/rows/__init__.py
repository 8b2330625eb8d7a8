"""Which data rows a step trains on, where a trainer leaves that to us.

In: files of rows, and the outcome of each group. Out: the rows of every step, and figures of each file. It refuses to
run anything.

Imports `rollout`.
"""
