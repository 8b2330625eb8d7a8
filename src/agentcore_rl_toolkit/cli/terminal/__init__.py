"""What verbs share: the parser, Ctrl-C, progress on a terminal, shell completion.

In: arguments and signals, counts as they come. Out: parsed flags, lines on stderr. It refuses to run anything itself.

Imports `backends`, `cli.rollouts`.
"""
