"""The verb of the model gateway: `gateway serve`.

In: flags and keys of the environment. Out: a gateway that serves until it is told to end.

Imports `cli.terminal`, `engine`, `gateway`.
"""
