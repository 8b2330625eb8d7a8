"""What `agentcore-rl init` writes: a new agent's folder, or what an agent's folder lacks.

In: a folder's name, or a folder with an agent. Out: files. It never changes a file that exists.

Imports no other station.
"""
