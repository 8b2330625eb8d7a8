"""A gateway in another place: the operations that serve its clients in batches, and a client with retries.

In: a gateway's URL and admin key. Out: the same `RolloutGateway` as in this process. It refuses to guess: what a
gateway refuses is raised unchanged, and only what may pass (no connection, a restart, overload) is tried again.

Imports `engine`, `gateway.call`, `gateway.http`, `gateway.record`, `gateway.render`, `gateway.wire`, `gateway.workers`.
"""
