"""The APIs that agents may call, each a pure translation to and from the same canonical call.

In: a request's JSON body. Out: a `ChatCall` or `TextCall`, and later the answer, stream or error in the API's own
format. A wire does no I/O and decides nothing about tokens.

Imports `gateway.call`, `gateway.record`.
"""
