"""Renders messages to token ids, parses sampled ids into replies, and bridges from one turn to the next.

In: canonical messages, token ids. Out: token ids, parsed replies, or the reason why a bridge would not be exact. This
folder never re-renders tokens that the model sampled, and it does not know sessions. `renderer.py` uses the other
modules.

Imports `engine`, `gateway.call`, `gateway.images`, `gateway.record`.
"""
