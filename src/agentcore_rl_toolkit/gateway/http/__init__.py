"""The gateway's HTTP: the server, the control API, streams to agents, and the API's description.

In: HTTP requests. Out: calls for `call/`, and replies in the words of a wire. It decides nothing about tokens.
"""
