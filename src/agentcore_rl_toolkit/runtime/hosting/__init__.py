"""What every runtime of our own (local, Ray) needs: the agent's code, its files, its commands, its pending rollouts.

Imports: `agent`, `store`, `runtime.base`.
"""
