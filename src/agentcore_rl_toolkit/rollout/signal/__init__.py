"""What rollouts teach: rewards made after the agent's own, and rewards turned into advantages.

`credit.py` gives each turn its advantage, `rescore.py` scores stored rollouts again. Pure; imports
`rollout/rollout.py`, `rollout/judge.py` and what those import.
"""
