"""One model call: match it to a turn, plan its prompt, sample, parse, record, reply.

In: a canonical call. Out: a recorded turn and its reply. It knows neither HTTP nor wires.

Imports `engine`, `gateway.images`, `gateway.record`, `gateway.render`.
"""
