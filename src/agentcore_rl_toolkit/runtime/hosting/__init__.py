"""What the local runtime and Ray's share.

In: an agent's path, a request's bytes, a session's answers. Out: the agent's app and files, checked requests, command
events, `session_lost` results. Everything a session sends is untrusted and bounded here.

Imports `agent`, `store`.
"""
