"""One model call: match it to a turn, plan its prompt, sample, parse, record, reply.

In: a canonical call. Out: a recorded turn and its reply. It knows neither HTTP nor wires. It may import `record`,
`render`, `engine` and `errors`; `chat`, `fingerprint` and `side_calls` are pure, and `record` imports them.
"""
