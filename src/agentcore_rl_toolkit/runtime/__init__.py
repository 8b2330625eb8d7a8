"""Where sessions run: on AWS (`aws.py`), on this machine (`local/`), or on a Ray cluster (`ray.py`).

In: a session id and a payload. Out: the app's answer, or a `RuntimeFault` with AWS's code. A runtime does not interpret
payloads beyond the `_rollout` fields it needs, and does not pace or retry; the client does.

Imports `agent`, `store`.
"""

from .base import CommandEvent, Invocation, Runtime

__all__ = ["CommandEvent", "Invocation", "Runtime"]
