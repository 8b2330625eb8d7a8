"""Messages to token ids and sampled ids back to a reply, with bridges between turns.

In: canonical messages, token ids. Out: token ids, parsed replies. It knows no session.
"""
