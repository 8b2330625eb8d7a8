"""Verbs of the local runtime: serve, check, ps, logs."""
