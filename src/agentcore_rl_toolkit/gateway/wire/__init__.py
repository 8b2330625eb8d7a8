"""Wires: one file per protocol an agent may speak, each a pure translation to and from the same call."""
