"""What verbs share: tables, progress, Ctrl-C, and the flags that several of them take."""
