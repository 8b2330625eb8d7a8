"""The views of the terminal: a run at a glance, lists of rollouts, one rollout as a conversation or as tokens.

In: a run's folder, a gateway's log, a folder of results. Out: text. They refuse to pass on what a rollout says without
escaping it: it may hold characters that move the cursor or turn text around.

Imports `agent`, `gateway`, `rollout`, `store`, `studio.guards`, `studio.server`.
"""
