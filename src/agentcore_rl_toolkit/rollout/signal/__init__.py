"""What rollouts teach: rewards made after the agent's own, and rewards turned into advantages.

`credit.py` gives each turn its advantage, `scorer.py` scores groups when they are complete, `rescore.py` stored
rollouts again.

Imports `agent`, `gateway`, `rewards`.
"""
