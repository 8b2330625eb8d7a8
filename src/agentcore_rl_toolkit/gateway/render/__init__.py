"""Messages to token ids, sampled ids to a reply, and bridges between turns.

In: canonical messages, token ids. Out: token ids, parsed replies, or the reason why a bridge is not exact. It refuses
to render what the model sampled, and has no notion of sessions. `renderer.py` owns the other parts. It may import
`engine`, `gateway.call.chat` and `gateway.record.turn`.
"""
