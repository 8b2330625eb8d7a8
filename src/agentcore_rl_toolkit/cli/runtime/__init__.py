"""Verbs of the local runtime: serve, check, ps, logs.

In: flags and an agent. Out: a runtime that serves, or what one that runs says of its sessions.

Imports `cli.terminal`, `runtime`.
"""
