"""Requests to the runtimes of one client: which runtime a session goes to, when, and what is tried again.

In: a session id and a payload. Out: the app's answer, or a `RuntimeFault`. `pacing.py` says when, `runtime_calls.py`
queues and sends for one runtime, `runtime_pool.py` shares sessions among several.

Imports `runtime`.
"""
