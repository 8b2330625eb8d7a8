"""One model call: find its place in the session, plan its prompt, sample, parse, record, reply.

In: a canonical call. Out: a recorded turn and its reply. It knows no HTTP and no wire.
"""
