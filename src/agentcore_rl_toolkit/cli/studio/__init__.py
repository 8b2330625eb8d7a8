"""Verbs that look at runs: ui, show.

In: folders of runs, results or logs. Out: a page, or text. They write nothing but the file of `--export`.

Imports `cli.terminal`, `gateway`, `rollout`, `studio`.
"""
