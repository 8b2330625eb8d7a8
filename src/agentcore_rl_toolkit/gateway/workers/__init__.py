"""Several processes as one gateway: who owns a session, how its requests get there, and starting workers again.

In: requests for any session. Out: requests that its owner serves. It reads a body only if more than one worker has
something to do with it.

Imports `gateway.http`, `gateway.record`, `gateway.remote`, `gateway.wire`.
"""
