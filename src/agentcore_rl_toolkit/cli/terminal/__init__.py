"""What verbs share in how they use the terminal: Ctrl-C, progress, tables."""
