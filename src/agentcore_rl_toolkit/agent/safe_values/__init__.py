"""How an agent's values become text that may be stored and logged: JSON, bounded and without secrets.

In: any Python value. Out: JSON values, short descriptions, redacted text. It stores and sends nothing.

Imports no other station.
"""
