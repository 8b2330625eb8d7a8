"""The gateway's HTTP: the server, the control API, streams to agents, and the API's description.

In: HTTP requests. Out: calls for `call/`, and replies in the format of a wire. It decides nothing about tokens. It may
import `wire`, `call` and `record`.

Imports `engine`, `gateway.call`, `gateway.record`, `gateway.remote`, `gateway.wire`.
"""
